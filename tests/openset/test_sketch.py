"""Sketches of unknown scores: exact for few samples, bounded for many, and checked on arrival."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedwild.contract.reference import Reference
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload
from fedwild.openset import threshold_at_acceptance
from fedwild.openset.sketch import (
    MAX_QUANTILES,
    Sketch,
    from_payload,
    pool,
    sketch_answers,
    sketch_scores,
    threshold_of,
    to_payload,
)

LEVELS = (0.01, 0.5, 0.9, 0.95, 0.999, 1.0)


def scores(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=n)


@pytest.mark.parametrize("n", [0, 1, 255, 256])
def test_few_scores_are_sent_sorted_and_complete(n: int) -> None:
    sketch = sketch_scores(scores(n))
    assert sketch.count == n
    assert sketch.quantiles.tolist() == sorted(scores(n).tolist())


@pytest.mark.parametrize("n", [257, 300, 511, 512, 1000, 100_003])
def test_many_scores_become_256_quantiles_of_the_empirical_distribution(n: int) -> None:
    sketch = sketch_scores(torch.from_numpy(scores(n)))
    assert sketch.quantiles.shape == (MAX_QUANTILES,)
    levels = np.arange(1, MAX_QUANTILES + 1) / MAX_QUANTILES
    # NumPy's definition of the inverse of the empirical distribution function (Hyndman and Fan, 1996, type 1).
    assert sketch.quantiles.tolist() == np.quantile(scores(n), levels, method="inverted_cdf").tolist()


@pytest.mark.parametrize("accept", LEVELS)
def test_the_threshold_of_few_scores_is_the_exact_one(accept: float) -> None:
    parts = [scores(n, n) for n in (3, 0, 256, 17)]
    exact = threshold_at_acceptance(np.concatenate(parts), accept)
    assert threshold_of([sketch_scores(part) for part in parts], accept) == exact


@pytest.mark.parametrize("accept", LEVELS)
def test_the_threshold_of_many_scores_accepts_at_most_a_256th_more(accept: float) -> None:
    parts = [scores(n, n) for n in (300, 5000, 40)]
    together = np.concatenate(parts)
    exact = threshold_at_acceptance(together, accept)
    found = threshold_of([sketch_scores(part) for part in parts], accept)
    assert found >= exact
    assert (together <= found).mean() - (together <= exact).mean() <= 1 / MAX_QUANTILES


def test_without_samples_the_threshold_accepts_everything() -> None:
    assert threshold_of([], 0.95) == math.inf
    assert threshold_of([sketch_scores(np.empty(0))], 0.95) == math.inf


@pytest.mark.parametrize("n", [0, 5, 1000])
def test_a_payload_holds_a_sketch_and_nothing_else(n: int) -> None:
    payload = Payload.decode(to_payload(sketch_scores(scores(n))).encode())
    assert set(payload.tensors) == {"sketch/quantiles", "sketch/losses"} and payload.info == {"count": n}
    assert from_payload(payload).quantiles.tolist() == sketch_scores(scores(n)).quantiles.tolist()


@pytest.mark.parametrize(
    ("values", "info", "problem"),
    [
        ([1.0, 2.0], {"count": 3}, "expected torch.float64"),
        ([2.0, 1.0], {"count": 2}, "sorted"),
        ([1.0, math.nan], {"count": 2}, "sorted"),
        ([1.0], {"count": True}, "whole number"),
        ([1.0], {"count": 2**54}, "whole number"),
        ([1.0], {}, "info 'count'"),
        ([1.0], {"count": 1, "samples": [0.5]}, "info 'count'"),
        ([[1.0]], {"count": 1}, "expected torch.float64"),
        ([0.0] * 257, {"count": 257}, "expected torch.float64"),
    ],
)
def test_an_impossible_sketch_is_rejected(values: list[float], info: dict[str, object], problem: str) -> None:
    payload = Payload({**to_payload(Sketch(np.zeros(0), 0)).tensors}, info)
    payload.tensors["sketch/quantiles"] = torch.tensor(values, dtype=torch.float64)
    with pytest.raises(BadReply, match=problem):
        from_payload(payload)


def test_a_sketch_of_single_precision_or_with_more_tensors_is_rejected() -> None:
    extra = to_payload(Sketch(np.zeros(1), 1))
    extra.tensors["logits"] = torch.zeros(3)
    with pytest.raises(BadReply, match="has the tensors"):
        from_payload(extra)
    single = to_payload(Sketch(np.zeros(1), 1))
    single.tensors["sketch/quantiles"] = torch.zeros(1)
    with pytest.raises(BadReply, match="float64"):
        from_payload(single)


@pytest.mark.parametrize("sizes", [[3, 0, 5], [100, 156], [1, 1, 1]])
def test_pooled_scores_of_few_samples_are_all_scores(sizes: list[int]) -> None:
    parts = [scores(n) + i for i, n in enumerate(sizes)]
    pooled = pool([sketch_scores(part) for part in parts])
    assert pooled.count == sum(sizes)
    assert pooled.quantiles.tolist() == sorted(np.concatenate(parts).tolist())


@pytest.mark.parametrize("accept", [0.05, 0.5, 0.95, 0.99, 1.0])
def test_pooled_scores_of_many_samples_give_the_threshold_up_to_a_quantile(accept: float) -> None:
    parts = [np.random.default_rng(i).normal(i, 1, size) for i, size in enumerate((2000, 700, 40))]
    everything = np.sort(np.concatenate(parts))
    found = Reference(torch.from_numpy(pool([sketch_scores(part) for part in parts]).quantiles), 2740).threshold(accept)
    share = np.searchsorted(everything, found, side="right") / len(everything)
    assert accept <= share <= accept + 2 / MAX_QUANTILES


def test_losses_travel_with_the_sketch_and_impossible_ones_are_rejected() -> None:
    sketch = sketch_answers(torch.eye(3), torch.zeros(3), torch.arange(3))
    assert from_payload(to_payload(sketch)).losses.tolist() == sketch.losses.tolist() != [0.0] * len(sketch.losses)
    for losses in (sketch.losses - 1e6, sketch.losses + 1e6, sketch.losses * np.nan, sketch.losses[:3]):
        with pytest.raises(BadReply, match="losses"):
            from_payload(to_payload(replace(sketch, losses=losses)))
