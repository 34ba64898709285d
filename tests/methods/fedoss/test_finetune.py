"""Fine-tuning: which statistics are sent, how they are merged, and which replies are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.core.errors import BadReply
from fedwild.core.rng import Rng
from fedwild.data import Dataset
from fedwild.methods.fedoss.finetune import mean_figures
from fedwild.methods.fedoss.open_space import OpenSpace, load_gaussians, read_moments
from fedwild.runs.events import read_events
from fedwild.statistics import merge_by_class
from fedwild.statistics.gaussians import FLOOR
from tests.methods.fedoss.federation import EVERYTHING, pretrained, split_by_class, uneven
from tests.tiny import run_tiny


def test_the_server_merges_statistics_by_theorem_1(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path)
    replies = federation.replies()
    federation.merge(replies)
    merged = merge_by_class(read_moments(reply) for reply in replies.values())
    gaussians = federation.server.state.subgroups("gaussians")
    assert list(gaussians) == ["0", "1", "2"]
    for k, found in merged.items():
        sent = [read_moments(reply)[k] for reply in replies.values()]
        mean = torch.stack([part.count * part.mean for part in sent]).sum(0) / sum(part.count for part in sent)
        assert torch.allclose(gaussians[str(k)]["mean"], mean.float(), atol=1e-5)
        between = [part.count * torch.outer(part.mean - mean, part.mean - mean) for part in sent]
        scatter = torch.stack([part.scatter() for part in sent]).sum(0) + torch.stack(between).sum(0)
        root = gaussians[str(k)]["root"].double()
        assert torch.allclose(root @ root.T, scatter / (found.count - 1) + FLOOR * torch.eye(len(mean)), atol=1e-5)
        assert found.count == sum(part.count for part in sent)


def test_statistics_count_every_pushed_sample_once(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, epochs=3)
    reply = federation.replies()["client-01"]
    assert sum(reply.info["counts"].values()) == reply.info["samples"]
    assert reply.info["boundary"] == 1.0
    # Samples without a gradient do not move.
    assert 0 < reply.info["displacement"] <= 1.001 * federation.method.params.step_size
    assert reply.info["statistics_bytes"] == sum(t.nbytes for t in reply.group("statistics").values()) > 0


def test_statistics_of_few_samples_are_not_sent(data: Dataset, tmp_path: Path) -> None:
    split = split_by_class(data, [{0: 16, 1: 4}, {0: 8, 2: 12}])
    federation = pretrained(data, split, tmp_path, min_count=6)
    replies = federation.replies()
    assert list(replies["client-00"].info["counts"]) == ["0"]
    assert list(replies["client-00"].subgroups("statistics")) == ["0"]
    assert list(replies["client-01"].info["counts"]) == ["0", "2"]


def test_own_gaussians_stay_at_the_client(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, split_by_class(data, [{0: 20, 1: 4}, {1: 20, 2: 20}]), tmp_path, aggregate=False)
    replies = federation.replies()
    federation.merge(replies)
    assert all("statistics" not in reply for reply in replies.values())
    assert "gaussians" not in federation.server.state
    assert [list(state.subgroups("gaussians")) for state in federation.states.values()] == [["0"], ["1", "2"]]


def test_clients_without_common_gaussians_draw_from_their_own(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(
        data, split_by_class(data, [{0: 20, 1: 4}, {1: 20, 2: 20}]), tmp_path, aggregate=False, foss=1.0
    )
    federation.merge(federation.replies())
    assert load_gaussians(federation.phase.send(federation.server, "client-00")) == {}
    grid = federation.method.layouts.of(federation.server.task, 3).grid
    gaussians = load_gaussians(federation.states["client-01"])
    settings, rng = federation.method.params, Rng(0).numpy("open space")
    drawn, near = OpenSpace(gaussians, grid, settings, rng, torch.device("cpu")).sample()
    assert near.tolist() == [1] * 6 + [2] * 6
    means = federation.states["client-01"].subgroups("gaussians")
    for k in (1, 2):
        distances = {
            other: float((drawn[near == k] - means[str(other)]["mean"]).norm(dim=1).mean()) for other in (1, 2)
        }
        assert min(distances, key=lambda other: distances[other]) == k


def test_statistics_are_sent_every_refresh_rounds(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, refresh=2)
    sent = []
    for round_ in range(3):
        federation.go_to("finetune", round_)
        replies = federation.replies()
        sent.append("statistics" in replies["client-00"])
        federation.merge(replies)
    assert sent == [True, False, True]


def test_the_authors_refresh_in_rounds_5_to_25(data: Dataset, tmp_path: Path) -> None:
    phase = pretrained(data, uneven(data), tmp_path, refresh=5, first_refresh=5, finetune_rounds=30).finetune
    assert [round_ for round_ in range(30) if phase.refreshes(round_)] == [5, 10, 15, 20, 25]


def test_the_number_of_drawn_samples_can_be_limited_over_all_classes(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, max_drawn=8, foss=1.0)
    federation.merge(federation.replies())
    grid = federation.method.layouts.of(federation.server.task, 3).grid
    gaussians = load_gaussians(federation.server.state)
    space = OpenSpace(gaussians, grid, federation.method.params, Rng(0).numpy("open space"), torch.device("cpu"))
    batches = [space.sample() for _ in range(20)]
    assert {len(drawn) for drawn, _ in batches} == {len(near) for _, near in batches} == {8}
    found = torch.cat([near for _, near in batches]).bincount()
    # Of 6 draws from each of 3 classes, 8 are taken at random: a third of them from each class.
    assert all(35 < int(number) < 72 for number in found)
    assert len({tuple(sorted(near.tolist())) for _, near in batches}) > 1


def test_events_have_the_share_of_boundary_samples_their_displacement_and_the_bytes(
    data: Dataset, tmp_path: Path
) -> None:
    result = run_tiny(tmp_path / "run", "fedoss", data, uneven(data), {"method": EVERYTHING})
    infos = [event["info"] for event in read_events(tmp_path / "run" / "events.jsonl") if event["event"] == "client"]
    last = infos[-1]
    assert last["boundary"] == 1.0
    assert last["displacement"] > 0
    assert last["statistics_bytes"] > 0
    assert last["head_bytes"] > 0
    assert last["model_bytes"] > last["head_bytes"]
    assert result["metrics"]["boundary"] == 1.0
    assert result["metrics"]["displacement"] == pytest.approx(last["displacement"], rel=0.1)


def test_statistics_that_were_not_requested_are_rejected(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, refresh=2)
    reply = federation.replies()["client-00"]
    federation.go_to("finetune", 1)
    with pytest.raises(BadReply, match="were not requested"):
        federation.phase.check(federation.server, reply)


def test_a_round_without_boundary_samples_is_noted_and_trains_on_known_ones(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path, boundary="margin", width=1e-9)
    before = federation.server.state.group("model")["head.weight"].clone()
    federation.merge(federation.replies())
    assert "no client found a boundary sample in this round" in federation.server.notes
    assert "gaussians" not in federation.server.state
    assert not torch.equal(before, federation.server.state.group("model")["head.weight"])


def test_a_class_without_new_statistics_keeps_its_gaussian(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path)
    federation.merge(federation.replies())
    kept = federation.server.state.group("gaussians/1")["mean"].clone()
    replies = federation.replies()
    for reply in replies.values():
        reply.drop("statistics/1")
        del reply.info["counts"]["1"]
    federation.merge(replies)
    assert torch.equal(federation.server.state.group("gaussians/1")["mean"], kept)


def test_a_class_with_ten_samples_in_all_has_no_gaussian(data: Dataset, tmp_path: Path) -> None:
    split = split_by_class(data, [{0: 16, 1: 7}, {0: 8, 1: 6, 2: 16}])
    federation = pretrained(data, split, tmp_path)
    replies = federation.replies()
    assert sum(reply.info["counts"].get("1", 0) for reply in replies.values()) == 10
    federation.merge(replies)
    assert list(federation.server.state.subgroups("gaussians")) == ["0", "2"]


def test_method_a_selects_samples_whose_prediction_a_perturbation_changes(data: Dataset, tmp_path: Path) -> None:
    shares = []
    for width in (1e-6, 50.0):
        federation = pretrained(data, uneven(data), tmp_path, boundary="perturbation", width=width)
        shares.append(federation.replies()["client-00"].info["boundary"])
    assert shares[0] == 0.0
    assert shares[1] > 0.2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda reply: reply.info.update(held=[7]), "'held'"),
        (lambda reply: reply.info.update(boundary="many"), "'boundary'"),
        (lambda reply: reply.info.update(displacement=-1.0), "'displacement'"),
        (lambda reply: reply.info["counts"].update({"0": 0}), "count of class 0"),
        (lambda reply: reply.info["counts"].pop("0"), "'counts'"),
        (lambda reply: reply.info.update(held=[1, 0]), "'held'"),
        (lambda reply: reply.info.update(held=[0] * 1000), "'held'"),
        (lambda reply: reply.info.update(boundary=1.5), "'boundary'"),
        (lambda reply: reply.info["counts"].update({"0": 3000}), "count of class 0"),
        (lambda reply: reply.info["counts"].update({"0": 1}), "statistics of class 0"),
        (lambda reply: reply.put("statistics/0", {"mean": torch.zeros(8)}), "statistics of class 0 lacks"),
        (lambda reply: reply.add("statistics/0", {"mean": torch.zeros(8, dtype=torch.float64)}), "float64"),
        (lambda reply: reply.put("head", {"head.weight": torch.zeros(3, 8)}), "head lacks"),
        (
            lambda reply: (
                reply.put("statistics/9", reply.group("statistics/0")),
                reply.info["counts"].update({"9": 3}),
            ),
            "not a class",
        ),
    ],
)
def test_invalid_replies_are_rejected(change: Any, words: str, data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path)
    reply = federation.replies()["client-00"]
    change(reply)
    with pytest.raises(BadReply, match=words):
        federation.phase.check(federation.server, reply)


def test_a_matrix_that_is_not_a_covariance_is_ignored(data: Dataset, tmp_path: Path) -> None:
    federation = pretrained(data, uneven(data), tmp_path)
    replies = federation.replies()
    spread = replies["client-02"].group("statistics/0")["spread"]
    replies["client-02"].group("statistics/0")["spread"].copy_(torch.full_like(spread, -1e6))
    federation.merge(replies)
    note = "the merged matrix of class 'class-0' is not a covariance and is ignored"
    assert note in federation.server.notes
    assert list(federation.server.state.subgroups("gaussians")) == ["1", "2"]


def test_figures_are_averaged_by_samples() -> None:
    first, second = {"boundary": 0.2, "displacement": 1.0}, {"boundary": 0.8, "displacement": 3.0}
    found = mean_figures([{**first, "samples": 3}, {**second, "samples": 1}])
    assert found == {"boundary": pytest.approx(0.35), "displacement": pytest.approx(1.5)}
    assert mean_figures([{**first, "samples": 0}]) == mean_figures([]) == {}
