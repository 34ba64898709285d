"""A paper's table: cells, each identified by its keys, with the measure that computes our figure from a result.

A figure of a paper is a table, too: its cells are the points of its curves, of which the text gives no numbers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from fedwild.core.errors import UserError, unknown_name


@dataclass(frozen=True)
class Measure:
    """Which figures of a run's result correspond to the paper's figure, and how to combine them."""

    figures: tuple[str, ...]
    join: Literal["mean", "largest", "relative-error"] = "mean"
    """The mean of the figures, the largest of those that the result has, or how far the first is from the second."""
    weights: tuple[float, ...] = ()
    """The weights of the figures in the mean; equal if empty."""
    part: str | None = None
    """The domain or client whose figures are used instead of those of the whole run."""
    over: Literal["mean", "deviation"] | None = None
    """Whether to take the mean or the sample standard deviation over all domains or clients."""
    factor: float = 1.0
    """The factor that converts to the paper's unit; 100 for per cent."""
    round: int | None = None
    """The round after which the run is measured, counted from 1; None for its end."""

    def of(self, result: Mapping[str, Any]) -> float:
        """Return the number for a `result.json`; NaN if a figure is undefined.

        For a measure after a round, `result["history"]` has the evaluations of the run by round.
        """
        if self.round is not None:
            if self.round not in result["history"]:
                raise UserError(f"the run was not evaluated after round {self.round}.")
            result = result["history"][self.round]
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
        if absent and (self.join != "largest" or not there):
            raise unknown_name("figure of the run", absent[0], metrics)
        values = [math.nan if (value := metrics[name]) is None else value for name in there]
        if any(math.isnan(value) for value in values):
            return math.nan
        if self.join == "relative-error":
            return abs(values[0] / values[1] - 1)
        return max(values) if self.join == "largest" else _mean(values, self.weights)


def _over(kind: Literal["mean", "deviation"], values: list[float]) -> float:
    if len(values) < (1 if kind == "mean" else 2) or any(math.isnan(value) for value in values):
        return math.nan
    return statistics.fmean(values) if kind == "mean" else statistics.stdev(values)


def _mean(values: list[float], weights: tuple[float, ...]) -> float:
    weights = weights or (1.0,) * len(values)
    return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)


@dataclass(frozen=True)
class Cell:
    """One printed figure, or one of our own beside them, and the run that gives it."""

    keys: dict[str, str]
    value: float | None
    """None if the row is not in the paper, or for a point of a curve, whose number the text does not give."""
    deviation: float | None
    """The number after ±; the table's `spread` says what it means."""
    unit: str
    measure: Measure | None
    """How to compute our figure from a run's result; None if a run has no such figure."""
    settings: dict[str, Any] | None
    """For `fedwild.runs.config.resolve`; None if fedwild has no such run."""
    waiting: str | None
    """What is missing to run the cell here: 'method: ...', 'data: ...' or 'figure: ...'."""
    seeds: tuple[int, ...] = ()
    """The seeds of the paper; empty if it does not state them."""
    parts: tuple[Cell, ...] = ()
    """The cells whose runs give this one's figure, as a mean; empty if it has its own run."""
    begins_with: dict[str, Any] | None = None
    """The settings of another run, whose model the run starts from. That run counts as the first round."""


@dataclass(frozen=True)
class Curves:
    """How the cells of a figure are drawn: the keys that give the x axis, the lines and the panels."""

    x: str
    lines: str
    panels: str | None = None


@dataclass(frozen=True)
class Table:
    """A table or a figure with numeric results."""

    paper: str
    id: str
    number: str
    """The number in the paper; '' if it has none."""
    caption: str
    spread: str
    note: str
    cells: tuple[Cell, ...]
    illegible: tuple[dict[str, str], ...]
    """The keys of figures that could not be read with certainty."""
    curves: Curves | None = None
    """How to draw it, if it is a figure."""

    @property
    def label(self) -> str:
        """What the paper calls it; '' if it has no number."""
        return f"{'Figure' if self.curves else 'Table'} {self.number}" if self.number else ""

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.id}"

    @property
    def keys(self) -> dict[str, list[str]]:
        """The values of each key, in the table's order."""
        return {key: list(dict.fromkeys(cell.keys[key] for cell in self.cells)) for key in self.cells[0].keys}

    def only(self, wanted: Mapping[str, str]) -> Table:
        """Return the table with only the cells whose keys have these values."""
        keys = self.keys
        wrong: list[str] = []
        for key, value in wanted.items():
            if key not in keys:
                wrong += unknown_name(f"key of {self.name}", key, keys).problems
            elif value not in keys[key]:
                wrong += unknown_name(f"{key} of {self.name}", value, keys[key]).problems
        if wrong:
            raise UserError(*wrong)
        cells = tuple(cell for cell in self.cells if wanted.items() <= cell.keys.items())
        if not cells:
            asked = ", ".join(f"{key}={value}" for key, value in wanted.items())
            raise UserError(f"{self.name} has no cell with {asked}: each of these values exists, but not together.")
        illegible = tuple(cell for cell in self.illegible if wanted.items() <= cell.items())
        return replace(self, cells=cells, illegible=illegible)


@dataclass(frozen=True)
class Paper:
    """A paper and its tables, in its own order."""

    id: str
    title: str
    authors: str
    venue: str
    note: str
    tables: tuple[Table, ...]
