"""Coordinates of values on a chart, and the numbers along its axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]

MAX_POINTS = 400
MIN_GAP = 0.15
"""The smallest distance of two ticks on a square-root axis, as a share of its length."""


@dataclass(frozen=True)
class Scale:
    """Maps values `low` .. `high` to coordinates `start` .. `end`, linearly or by square roots."""

    low: float
    high: float
    start: float
    end: float
    root: bool = False
    """Whether coordinates follow the square root of values; `low` is 0 then."""

    def __call__(self, value: Any) -> Any:
        """Return the coordinate of a value or of an array of values."""
        if self.root:
            return self.start + (value / self.high) ** 0.5 * (self.end - self.start)
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def value_range(values: Sequence[float | None] | Real, include_zero: bool = False) -> tuple[float, float]:
    """Return the smallest and the largest finite value; the range is never empty."""
    finite = [float(v) for v in values if v is not None and math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    low, high = (min(low, 0.0), max(high, 0.0)) if include_zero else (low, high)
    if high - low <= 1e-12 * max(abs(high), abs(low)):
        low, high = (low - 0.5 * abs(low), high + 0.5 * abs(high)) if high else (0.0, 1.0)
    return low, high


def ticks(low: float, high: float, about: int = 5, whole: bool = False) -> list[float]:
    """Return round numbers between low and high, about this number of them; with `whole`, only whole numbers."""
    rough = (high - low) / max(1, about)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def root_ticks(high: float) -> list[float]:
    """Return 0, `high` and round numbers between them that are well apart on a square-root axis."""
    power = math.floor(math.log10(high))
    chosen: list[float] = [high]
    for value in (factor * 10.0 ** (power - lower) for lower in range(4) for factor in (5, 2, 1)):
        if value > 0 and ((chosen[-1] / high) ** 0.5 - (value / high) ** 0.5) >= MIN_GAP <= (value / high) ** 0.5:
            chosen.append(value)
    return [0.0, *reversed(chosen)]


def rounded_range(low: float, high: float) -> tuple[float, float]:
    """Return the range extended to the next ticks."""
    marks = ticks(low, high)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def tick_labels(values: Sequence[float], percent: bool = False) -> list[str]:
    """Return ticks as text, all with the same number of decimals."""
    if percent:
        return [f"{100 * value:.4g} %" for value in values]
    largest = max((abs(value) for value in values), default=0.0)
    if largest >= 1e6 or 0 < largest < 1e-3:
        return [f"{value:.3g}" for value in values]
    gap = min((b - a for a, b in pairwise(values)), default=largest or 1.0)
    digits = max(0, -math.floor(math.log10(gap) + 1e-9)) if gap > 0 else 0
    return [f"{value:.{digits}f}" for value in values]


def thin_out(*columns: Sequence[Any] | NDArray[Any], limit: int = MAX_POINTS) -> tuple[NDArray[Any], ...]:
    """Return at most `limit` evenly spaced rows of the columns; the first and the last row stay."""
    count = len(columns[0])
    keep = np.arange(count) if count <= limit else np.unique(np.linspace(0, count - 1, limit).round().astype(int))
    return tuple(np.asarray(column)[keep] for column in columns)
