"""From a run's result to the figure that a paper prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from fedwild.core.errors import unknown_name


@dataclass(frozen=True)
class Measure:
    """Which figures of a run's result correspond to the paper's figure, and how to combine them."""

    figures: tuple[str, ...]
    join: Literal["mean", "largest"] = "mean"
    """The mean of the figures, or the largest of those that the result has."""
    weights: tuple[float, ...] = ()
    """The weights of the figures in the mean; equal if empty."""
    part: str | None = None
    """The domain or client whose figures are used instead of those of the whole run."""
    over: Literal["mean", "deviation"] | None = None
    """Whether to take the mean or the sample standard deviation over all domains or clients."""
    factor: float = 1.0
    """The factor that converts to the paper's unit; 100 for per cent."""

    def of(self, result: Mapping[str, Any]) -> float:
        """Return the number for a `result.json`; NaN if a figure is undefined."""
        by: Mapping[str, Mapping[str, float | None]] = result["by"]
        if self.over is not None:
            return self.factor * _over(self.over, [self._joined(figures) for figures in by.values()])
        if self.part is None:
            return self.factor * self._joined(result["metrics"])
        if self.part not in by:
            raise unknown_name("domain or client of the run", self.part, by)
        return self.factor * self._joined(by[self.part])

    def _joined(self, metrics: Mapping[str, float | None]) -> float:
        there = [name for name in self.figures if name in metrics]
        absent = [name for name in self.figures if name not in metrics]
        if absent and (self.join == "mean" or not there):
            raise unknown_name("figure of the run", absent[0], metrics)
        values = [math.nan if (value := metrics[name]) is None else value for name in there]
        if any(math.isnan(value) for value in values):
            return math.nan
        return max(values) if self.join == "largest" else _mean(values, self.weights)


def _over(kind: Literal["mean", "deviation"], values: list[float]) -> float:
    if len(values) < (1 if kind == "mean" else 2) or any(math.isnan(value) for value in values):
        return math.nan
    return statistics.fmean(values) if kind == "mean" else statistics.stdev(values)


def _mean(values: list[float], weights: tuple[float, ...]) -> float:
    weights = weights or (1.0,) * len(values)
    return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)
