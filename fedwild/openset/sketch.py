"""What a client sends about its validation samples: quantiles of unknown scores, sums of losses and their number.

The unknown scores of single samples never leave a client in the order of its samples. n <= 256 scores are sent sorted;
of more scores, the 256 quantiles at the levels 1/256, 2/256 ... 1. The k-th quantile is the smallest score that at
least the share k/256 of the samples does not exceed, so it is one of the scores, and the last one is the largest. A
threshold from quantiles is never below the exact one, and accepts at most 1/256 of the samples more. The sums of losses
choose a temperature, see `temperature.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload
from fedwild.openset.temperature import MAX_LOSS, TEMPERATURES, loss_sums

MAX_QUANTILES = 256
MAX_COUNT = 2**53
GROUP, QUANTILES, LOSSES = "sketch", "quantiles", "losses"


@dataclass(frozen=True)
class Sketch:
    """Sorted quantiles (m,) float64 of `count` scores; m = min(count, 256)."""

    quantiles: np.ndarray
    count: int
    losses: np.ndarray = field(default_factory=lambda: np.zeros(len(TEMPERATURES)))
    """The sum of the samples' losses at each of `TEMPERATURES`; zeros if they are not known."""


def sketch_scores(scores: Tensor | np.ndarray) -> Sketch:
    """Return the sketch of scores (n,). NaN scores are sorted last."""
    values = np.sort(torch.as_tensor(scores).detach().double().cpu().numpy())
    count = len(values)
    if count > MAX_QUANTILES:
        # ceil(k * count / 256) - 1 in whole numbers, k = 1 ... 256
        values = values[-(-np.arange(1, MAX_QUANTILES + 1) * count // MAX_QUANTILES) - 1]
    return Sketch(values, count)


def sketch_answers(logits: Tensor, unknown: Tensor, labels: Tensor) -> Sketch:
    """Return the sketch of answers: logits (n, K), unknown scores (n,) and the right classes (n,)."""
    return replace(sketch_scores(unknown), losses=loss_sums(logits, labels))


def to_payload(sketch: Sketch) -> Payload:
    """Return the sketch as the payload that a client sends."""
    payload = Payload(info={"count": sketch.count})
    values = {QUANTILES: sketch.quantiles, LOSSES: sketch.losses}
    payload.add(GROUP, {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in values.items()})
    return payload


def from_payload(payload: Payload) -> Sketch:
    """Return the sketch that a client sent. Raises `BadReply` unless it is one that `sketch_scores` can return."""
    names, count = set(payload.tensors), payload.info.get("count")
    if names != {f"{GROUP}/{QUANTILES}", f"{GROUP}/{LOSSES}"} or set(payload.info) != {"count"}:
        raise BadReply("a sketch of scores has the tensors 'sketch/quantiles' and 'sketch/losses', and info 'count'")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_COUNT:
        raise BadReply(f"info 'count' is {str(count)[:40]}, expected a whole number from 0 to 2**53")
    quantiles = _read(payload, QUANTILES, min(count, MAX_QUANTILES))
    if np.isnan(quantiles).any() or (quantiles[1:] < quantiles[:-1]).any():
        raise BadReply("the quantiles of a sketch must be sorted numbers")
    losses = _read(payload, LOSSES, len(TEMPERATURES))
    if not ((losses >= 0) & (losses <= MAX_LOSS * count * (1 + 1e-9))).all():
        raise BadReply(f"the losses of a sketch must be from 0 to {MAX_LOSS:g} for each sample")
    return Sketch(quantiles, count, losses)


def _read(payload: Payload, name: str, length: int) -> np.ndarray:
    values = payload.group(GROUP)[name]
    if values.dtype != torch.float64 or tuple(values.shape) != (length,):
        raise BadReply(f"the {name} are {values.dtype} {tuple(values.shape)}, expected torch.float64 ({length},)")
    array: np.ndarray = values.numpy()
    return array


def threshold_of(sketches: Sequence[Sketch], accept: float) -> float:
    """Return the smallest t such that at least the share `accept` of all samples behind the sketches has u <= t.

    Every quantile stands for count / m samples of its client. For clients with at most 256 samples this is
    `threshold_at_acceptance` of all scores, bit for bit; without samples it is +inf.
    """
    values, shares = _distribution(sketches)
    return float(values[np.searchsorted(shares, accept)]) if len(values) else math.inf


def pool(sketches: Sequence[Sketch]) -> Sketch:
    """Return the sketch of all samples behind the sketches: their scores if there are at most 256."""
    count = sum(sketch.count for sketch in sketches)
    values, shares = _distribution(sketches)
    length = min(count, MAX_QUANTILES)
    if len(values) != length:
        values = values[np.searchsorted(shares, np.arange(1, length + 1) / length)]
    return Sketch(values, count, np.sum([sketch.losses for sketch in sketches], axis=0))


def _distribution(sketches: Sequence[Sketch]) -> tuple[np.ndarray, np.ndarray]:
    """Return all quantiles, sorted, and the share of samples that are at most as large as each."""
    filled = [sketch for sketch in sketches if sketch.count]
    if not filled:
        return np.empty(0), np.empty(0)
    values = np.concatenate([sketch.quantiles for sketch in filled])
    # Multiples of 1/256, so that sums are exact.
    weights = np.concatenate([np.full(len(s.quantiles), s.count / len(s.quantiles)) for s in filled])
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return values[order], total / total[-1]
