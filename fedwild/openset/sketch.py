"""A client's unknown scores as a sketch of bounded size: sorted quantiles and the number of samples.

The unknown scores of single samples never leave a client in the order of its samples. n <= 256 scores are sent sorted;
of more scores, the 256 quantiles at the levels 1/256, 2/256 ... 1. The k-th quantile is the smallest score that at
least the share k/256 of the samples does not exceed, so it is one of the scores, and the last one is the largest. A
threshold from quantiles is never below the exact one, and accepts at most 1/256 of the samples more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload

MAX_QUANTILES = 256
MAX_COUNT = 2**53
GROUP, QUANTILES = "sketch", "quantiles"


@dataclass(frozen=True)
class Sketch:
    """Sorted quantiles (m,) float64 of `count` scores; m = min(count, 256)."""

    quantiles: np.ndarray
    count: int


def sketch_scores(scores: Tensor | np.ndarray) -> Sketch:
    """Return the sketch of scores (n,). NaN scores are sorted last."""
    values = np.sort(torch.as_tensor(scores).detach().double().cpu().numpy())
    count = len(values)
    if count > MAX_QUANTILES:
        # ceil(k * count / 256) - 1 in whole numbers, k = 1 ... 256
        values = values[-(-np.arange(1, MAX_QUANTILES + 1) * count // MAX_QUANTILES) - 1]
    return Sketch(values, count)


def to_payload(sketch: Sketch) -> Payload:
    """Return the sketch as the payload that a client sends."""
    payload = Payload(info={"count": sketch.count})
    payload.add(GROUP, {QUANTILES: torch.from_numpy(np.ascontiguousarray(sketch.quantiles))})
    return payload


def from_payload(payload: Payload) -> Sketch:
    """Return the sketch that a client sent. Raises `BadReply` unless it is one that `sketch_scores` can return."""
    names, count = set(payload.tensors), payload.info.get("count")
    if names != {f"{GROUP}/{QUANTILES}"} or set(payload.info) != {"count"}:
        raise BadReply("a sketch of scores has one tensor, 'sketch/quantiles', and info 'count'")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_COUNT:
        raise BadReply(f"info 'count' is {str(count)[:40]}, expected a whole number from 0 to 2**53")
    values = payload.group(GROUP)[QUANTILES]
    expected = (min(count, MAX_QUANTILES),)
    if values.dtype != torch.float64 or tuple(values.shape) != expected:
        raise BadReply(f"the quantiles are {values.dtype} {tuple(values.shape)}, expected torch.float64 {expected}")
    quantiles = values.numpy()
    if np.isnan(quantiles).any() or (quantiles[1:] < quantiles[:-1]).any():
        raise BadReply("the quantiles of a sketch must be sorted numbers")
    return Sketch(quantiles, count)


def threshold_of(sketches: Sequence[Sketch], accept: float) -> float:
    """Return the smallest t such that at least the share `accept` of all samples behind the sketches has u <= t.

    Every quantile stands for count / m samples of its client. For clients with at most 256 samples this is
    `threshold_at_acceptance` of all scores, bit for bit; without samples it is +inf.
    """
    filled = [sketch for sketch in sketches if sketch.count]
    if not filled:
        return math.inf
    values = np.concatenate([sketch.quantiles for sketch in filled])
    # Multiples of 1/256, so that sums are exact.
    weights = np.concatenate([np.full(len(s.quantiles), s.count / len(s.quantiles)) for s in filled])
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total / total[-1], accept)])
