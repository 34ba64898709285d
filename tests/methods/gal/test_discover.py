"""The phase `discover`: what clients send, what the registry and the head gain, and the first bias."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.data import Dataset
from fedwild.methods.gal.novelty import max_cosine
from tests.methods.gal.federation import KNOWN, NOVEL, WIDTH, described, equal, events, extractor, notes, run, split_of


@pytest.mark.parametrize("classes", [1, 2, 4])
def test_the_head_grows_by_the_estimated_number(classes: int, data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, parts={"estimator": {"name": "given", "classes": classes}})
    assert server.group("model")["head.weight"].shape == (KNOWN + classes, WIDTH)
    assert [entry["name"] for entry in server.info["classes"][KNOWN:]] == [f"novel-{i + 1}" for i in range(classes)]
    assert server.info["state"]["estimates"][0]["number"] == classes
    assert "head.bias" not in server.group("model")
    words = "1 novel class (" if classes == 1 else f"{classes} novel classes ("
    assert words in " ".join(notes(tmp_path / "run"))


def test_the_registry_has_the_stage_and_the_samples_of_each_client(data: Dataset, tmp_path: Path) -> None:
    split = split_of(data)
    entries = run(tmp_path / "run", data, split).info["classes"]
    assert all((entry["stage"], entry["samples"], entry["origin"]) == (0, {}, "known") for entry in entries[:KNOWN])
    discovered = events(tmp_path / "run", "round")[3]
    for entry in entries[KNOWN:]:
        assert (entry["origin"], entry["stage"], entry["since"]) == ("novel", 1, discovered["index"])
        assert all(count > 0 for count in entry["samples"].values())
    for client in split.clients:
        found = sum(entry["samples"].get(client.name, 0) for entry in entries)
        assert found == len(client.unlabelled) == 16


def test_clusters_smaller_than_min_count_are_not_sent(data: Dataset, tmp_path: Path) -> None:
    found = {}
    for smallest in (1, 5, 1000):
        federation = described(data, tmp_path, min_count=smallest, clusters=6)
        federation.merge()
        replies = federation.at("discover-1").replies()
        counts = [count for reply in replies.values() for count in reply.group("clusters")["counts"].tolist()]
        assert all(count >= smallest for count in counts)
        assert all(reply.info["samples"] == reply.info["pool"] == 16 for reply in replies.values())
        found[smallest] = sum(counts)
    assert found[1] == 48 > found[5] > found[1000] == 0


def test_centroids_are_means_of_embeddings_of_novel_samples(data: Dataset, tmp_path: Path) -> None:
    federation = described(data, tmp_path)
    federation.merge()
    cosines = max_cosine(*federation.embedded("client-01"))
    federation.server.state.info["novelty"] = novelty = float(cosines.sort().values[9])
    reply = federation.at("discover-1").replies()["client-01"]
    z, _ = federation.embedded("client-01")
    assert reply.info["samples"] == 9
    group = reply.group("clusters")
    assert len(group["counts"]) == KNOWN
    mean = (group["centroids"] * group["counts"][:, None]).sum(0) / 9
    assert torch.allclose(mean, z[cosines < novelty].mean(0), atol=1e-5)


def test_initial_rows_of_novel_classes_are_scaled_prototypes_raw_prototypes_or_random(
    data: Dataset, tmp_path: Path
) -> None:
    heads = {}
    choices: dict[str, dict[str, Any]] = {"scaled": {}, "raw": {"rows": "raw"}, "random": {"init": "random"}}
    for name, choice in choices.items():
        server = run(tmp_path / name, data, novel_rounds=0, **choice)
        heads[name] = server.group("model")["head.weight"]
        prototypes = server.group("found")["prototypes"]
        assert torch.equal(heads[name][:KNOWN], server.group("anchor")["head.weight"])
        assert equal(extractor(server.group("model")), extractor(server.group("anchor")))
    length = heads["raw"][:KNOWN].norm(dim=1).mean()
    assert torch.equal(heads["raw"][KNOWN:], prototypes)
    assert torch.allclose(heads["scaled"][KNOWN:], prototypes * length / prototypes.norm(dim=1, keepdim=True))
    assert torch.allclose(heads["random"][KNOWN:].norm(dim=1), length.expand(2))
    assert not torch.allclose(heads["random"][KNOWN:], heads["scaled"][KNOWN:], atol=0.01)


def test_later_stages_continue_the_names_and_use_their_own_samples(data: Dataset, tmp_path: Path) -> None:
    split = split_of(data, stages=(1, 1))
    server = run(tmp_path / "run", data, split, stages=2)
    novel = server.info["classes"][KNOWN:]
    assert [(entry["name"], entry["stage"]) for entry in novel] == [
        ("novel-1", 1),
        ("novel-2", 1),
        ("novel-3", 2),
        ("novel-4", 2),
    ]
    for stage in (1, 2):
        held = sum(len(split.unlabelled_in(client, stage, data)) for client in split.clients)
        assert sum(sum(entry["samples"].values()) for entry in novel if entry["stage"] == stage) == held == 24
    assert server.group("model")["head.weight"].shape == (7, WIDTH)
    # The classes of the first stage are known in the second.
    assert server.group("anchor")["head.weight"].shape == (5, WIDTH)
    assert server.group("origin")["head.weight"].shape == (3, WIDTH)
    assert torch.equal(server.group("model")["head.weight"][:5], server.group("anchor")["head.weight"])
    found = [event["info"]["samples"] for event in events(tmp_path / "run", "client") if "novel-2" in event["phase"]]
    assert found == [8] * 6


def test_replayed_samples_have_the_noise_of_eq_12(data: Dataset, tmp_path: Path) -> None:
    federation = described(data, tmp_path, against_forgetting="distillation", clusters=2)
    federation.merge()
    replies = federation.at("discover-1").replies()
    federation.merge()
    centroids = torch.cat([reply.group("clusters")["centroids"] for reply in replies.values()]).double()
    least = min(torch.dist(a, b).item() for i, a in enumerate(centroids) for b in centroids[:i])
    found = federation.server.state.group("found")
    assert int(found["clients"]) == len(replies) == 3
    assert found["noise"].item() == pytest.approx(0.01**0.5 * least, rel=1e-5)


def test_a_client_without_unlabelled_samples_notes_it(data: Dataset, tmp_path: Path) -> None:
    rows = [i for i, label in enumerate(data.y_train.tolist()) if KNOWN <= label < KNOWN + NOVEL]
    run(tmp_path / "run", data, split_of(data, pools=[rows, [], rows[:1]]))
    noted = {event["client"]: event.get("notes", []) for event in events(tmp_path / "run", "client")[9:12]}
    assert noted == {"client-00": [], "client-01": ["it has no unlabelled samples"], "client-02": []}


def test_right_after_discovery_known_clusters_keep_their_answers(data: Dataset, tmp_path: Path) -> None:
    federation = described(data, tmp_path, keep_known=0.9)
    federation.merge()
    federation.at("discover-1").merge()
    state = federation.server.state
    clusters, head = state.group("known_clusters"), state.group("model")["head.weight"]
    logits = clusters["centroids"] @ head.T
    logits[:, KNOWN:] -= state.info["bias"]
    kept = clusters["counts"][logits.argmax(1) < KNOWN].sum() / clusters["counts"].sum()
    assert kept >= 0.9
    federation = described(data, tmp_path, keep_known=0.0)
    federation.merge()
    federation.at("discover-1").merge()
    assert federation.server.state.info["bias"] == 0.0
