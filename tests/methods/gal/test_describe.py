"""The phase `describe`: what clients send, the thresholds that follow, and replies that are rejected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedwild.core.errors import BadReply
from fedwild.data import Dataset
from fedwild.data.samples import samples_of
from fedwild.methods.gal.describe import check_cosines, check_margins
from fedwild.methods.gal.novelty import (
    BINS,
    accepting_threshold,
    cosine_histogram,
    max_cosine,
    separating_threshold,
)
from tests.methods.gal.federation import KNOWN, described, predictor_of, run, split_of


def test_clients_send_only_clusters_and_label_counts_of_validation_samples(data: Dataset, tmp_path: Path) -> None:
    federation = described(data, tmp_path, clusters=4)
    reply = federation.replies()["client-02"]
    client = federation.executor.split.clients[2]
    labels = reply.group("clusters")["labels"]
    assert set(reply.tensors) == {
        "cosines/known",
        "cosines/pool",
        "clusters/centroids",
        "clusters/counts",
        "clusters/labels",
    }
    assert reply.info == {"samples": len(client.validation)}
    assert labels.sum(0).tolist() == np.bincount(data.y_train.numpy()[client.validation], minlength=KNOWN).tolist()
    assert torch.equal(labels.sum(1), reply.group("clusters")["counts"])


def test_clusters_smaller_than_min_known_count_are_not_sent(data: Dataset, tmp_path: Path) -> None:
    found = {}
    for smallest in (1, 3, 7):
        replies = described(data, tmp_path, clusters=4, min_known_count=smallest).replies()
        for reply in replies.values():
            group = reply.group("clusters")
            assert all(count >= smallest for count in group["counts"].tolist())
            assert torch.equal(group["labels"].sum(1), group["counts"])
            assert reply.info["samples"] == 6
        found[smallest] = sum(int(reply.group("clusters")["counts"].sum()) for reply in replies.values())
    assert found[1] == 18 >= found[3] > found[7] == 0


@pytest.mark.parametrize("novelty", ["separate", "accept", "fixed"])
def test_the_novelty_threshold_comes_from_the_histograms_of_all_clients(
    novelty: str, data: Dataset, tmp_path: Path
) -> None:
    federation = described(data, tmp_path, novelty=novelty, accept=0.8, r=0.37)
    weights = federation.server.state.group("model")
    model = federation.server.task.network(weights, KNOWN, bias=False, slot="by hand").eval()
    known, pool = torch.zeros(BINS), torch.zeros(BINS)
    for client in federation.executor.split.clients:
        for part, counts in ((client.validation, known), (client.unlabelled, pool)):
            with torch.no_grad():
                z = model.embed(samples_of(data, part).all()[0])
            counts += cosine_histogram(max_cosine(z, weights["head.weight"]))
    federation.merge()
    found = federation.server.state.info["novelty"]
    histograms = known.double().numpy(), pool.double().numpy()
    expected = {
        "fixed": 0.37,
        "accept": accepting_threshold(histograms[0], 0.8),
        "separate": separating_threshold(*histograms, 0.8),
    }
    assert found == pytest.approx(expected[novelty])
    assert federation.server.notes[-1].startswith(f"novelty threshold {found:.2f}: 48 unlabelled samples, at most ")


def test_each_round_describes_the_pool_of_the_next_stage(data: Dataset, tmp_path: Path) -> None:
    split = split_of(data, stages=(1, 1))
    federation = described(data, tmp_path, split, stages=2)
    for round_, stage in ((0, 1), (1, 2), (2, 3)):
        replies = federation.at("describe", round_).replies()
        for client in split.clients:
            held = len(split.unlabelled_in(client, stage, data))
            assert replies[client.name].group("cosines")["pool"].sum() == held == (8 if stage < 3 else 0)


@pytest.mark.parametrize("keep", [0.5, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_at_least_the_share_keep_known_of_validation_samples_gets_a_known_answer(
    keep: float, seed: int, data: Dataset, tmp_path: Path
) -> None:
    split = split_of(data)
    run(tmp_path / "run", data, split, parts={"seed": seed}, keep_known=keep, loss="labels", rehearse=True)
    predictor = predictor_of(tmp_path / "run", data, split, keep_known=keep)
    rows = np.concatenate([client.validation for client in split.clients])
    answers = predictor.predict(samples_of(data, rows).all()[0]).logits.argmax(1)
    assert len(rows) == 18
    kept = (answers < KNOWN).double().mean().item()
    assert kept >= keep
    # The bias is no larger than needed: one sample fewer would not be enough, unless plain argmax keeps more.
    assert kept <= keep + 1 / 18 or predictor.bias == 0
    assert predictor.bias >= 0


def test_without_validation_samples_there_is_no_bias(data: Dataset, tmp_path: Path) -> None:
    server = run(tmp_path / "run", data, split_of(data, validation=False), keep_known=0.95)
    assert server.info["state"]["bias"] == 0.0


@pytest.mark.parametrize(
    "group",
    [
        {"novel": torch.zeros(6)},
        {"novel": torch.zeros(7, 1)},
        {"novel": torch.zeros(7, dtype=torch.int64)},
        {"other": torch.zeros(7)},
    ],
)
def test_margins_must_be_one_number_per_sample(group: dict[str, torch.Tensor]) -> None:
    check_margins({"novel": torch.zeros(7)}, 7)
    check_margins({}, 7)
    with pytest.raises(BadReply, match="margins/"):
        check_margins(group, 7)


def test_histograms_must_count_samples() -> None:
    known, pool = torch.zeros(BINS), torch.zeros(BINS)
    known[[3, 50]] = torch.tensor([5.0, 2.0])
    check_cosines({"known": known, "pool": pool}, 7)
    less = pool.clone()
    less[9] = -1
    for group in ({"known": known, "pool": less}, {"known": known + less + less.abs() * 2, "pool": pool}):
        with pytest.raises(BadReply, match="not histograms of samples, of which 7"):
            check_cosines(group, 7)
