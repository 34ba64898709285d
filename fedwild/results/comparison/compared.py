"""A comparison: rows of runs, columns of figures (which values are better, how they are written), and their table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedwild.core.errors import UserError, unknown_name
from fedwild.core.text import size
from fedwild.display.figures import IF_MEASURED, OPEN_SET, is_count, is_share, shown_figures
from fedwild.results.comparison.grouping import Group, differing, grouped, named
from fedwild.results.comparison.notes import (
    data_note,
    other_settings_note,
    repeated_note,
    significance_notes,
    unfinished_note,
)
from fedwild.results.comparison.reading import COSTS, FinishedRun, Found
from fedwild.results.comparison.significance import TTest, deviation, mean, t_tests
from fedwild.results.tables.model import Cell, ResultTable, words

SIGN = "†"
LABELS = {**OPEN_SET, **IF_MEASURED, "seconds": "time", "bytes_up": "bytes up", "bytes_down": "bytes down"}
BETTER_SMALL = ("fpr95_", "forgetting", *COSTS)


@dataclass(frozen=True)
class Entry:
    """A figure of a row."""

    values: dict[int, float]
    """By seed."""
    best: bool = False
    """Whether no row shows a better value."""
    test: TTest | None = None
    """Against the row with the best mean; None for that row and for untested columns."""

    @property
    def mean(self) -> float | None:
        return mean(list(self.values.values())) if self.values else None

    @property
    def deviation(self) -> float | None:
        return deviation(list(self.values.values()))

    def to_json(self) -> dict[str, Any]:
        test = self.test or TTest("", None)
        return {
            "mean": self.mean,
            "deviation": self.deviation,
            "values": {str(seed): value for seed, value in self.values.items()},
            "best": self.best,
            "test": test.kind or None,
            "p": test.p,
            "p_holm": test.corrected,
        }


@dataclass(frozen=True)
class Comparison:
    """Rows of runs with their figures."""

    rows: tuple[Group, ...]
    columns: tuple[Column, ...]
    notes: tuple[str, ...]

    @cached_property
    def entries(self) -> dict[str, list[Entry]]:
        """The figures of all rows, by column."""
        return {column.key: compared(column, self.rows) for column in self.columns}

    def table(self, title: str = "") -> ResultTable:
        """Return the table with its notes."""
        headings = ("runs", "seeds", *(column.label for column in self.columns))
        rows = tuple(
            (
                words(row.name),
                Cell(str(len(row.runs)), values=(("", len(row.runs)),)),
                *(cell(column, self.entries[column.key][index], len(row.runs)) for column in self.columns),
            )
            for index, row in enumerate(self.rows)
        )
        return ResultTable(title, headings, rows, self.all_notes())

    def all_notes(self) -> tuple[str, ...]:
        """Return the notes below the table."""
        tested = [(row.name, entries[i].test) for entries in self.entries.values() for i, row in enumerate(self.rows)]
        return (*significance_notes(SIGN, tested), *self.notes)

    def to_json(self) -> dict[str, Any]:
        """Return all figures and tests as plain values."""
        return {
            "columns": [{"name": c.key, "label": c.label, "better": c.better} for c in self.columns],
            "rows": [
                {
                    "name": row.name,
                    "settings": {key: row.settings[key] for key in self._keys if key in row.settings},
                    "seeds": list(row.runs),
                    "runs": [str(run.path) for run in row.runs.values()],
                    "figures": {key: entries[index].to_json() for key, entries in self.entries.items()},
                }
                for index, row in enumerate(self.rows)
            ],
            "notes": list(self.all_notes()),
        }

    @cached_property
    def _keys(self) -> list[str]:
        return differing(row.runs for row in self.rows)


def compare(found: Found, metrics: Iterable[str] = (), by: Sequence[str] = ()) -> Comparison:
    """Compare runs, with one row for those that differ only in their seed.

    Rows are named by the settings that differ, or by the settings `by`.
    """
    if not found.finished:
        names = ", ".join(map(str, found.unfinished))
        raise UserError(f"no run is finished: run `fedwild resume` to continue {names}.")
    groups, repeated = grouped(found.finished)
    notes = [unfinished_note(found.unfinished), repeated_note(repeated)]
    return comparison(named(groups, by), metrics, notes)


def comparison(rows: Sequence[Group], metrics: Iterable[str], notes: Iterable[str | None] = ()) -> Comparison:
    """Compare rows that already have names."""
    columns = columns_for([run for row in rows for run in row.runs.values()], metrics)
    every = [*notes, other_settings_note(rows), data_note(rows)]
    return Comparison(tuple(rows), tuple(columns), tuple(note for note in every if note))


def compared(column: Column, rows: Sequence[Group]) -> list[Entry]:
    """Return a column's entries, with the best marked and the others tested against it."""
    values = [row.values(column.key) for row in rows]
    measured = [index for index, given in enumerate(values) if given]
    if column.better is None or len(rows) < 2 or not measured:
        return [Entry(given) for given in values]
    pick: Callable[..., int] = max if column.better == "large" else min
    top = pick(measured, key=lambda index: mean(list(values[index].values())))
    shown = column.shown_mean(list(values[top].values()))
    others = [index for index in measured if index != top and not column.is_cost]
    tests = dict(zip(others, t_tests(values[top], [values[index] for index in others]), strict=True))
    return [
        Entry(given, bool(given) and column.shown_mean(list(given.values())) == shown, tests.get(index))
        for index, given in enumerate(values)
    ]


def cell(column: Column, entry: Entry, runs: int) -> Cell:
    """Return an entry as a cell of the table."""
    sign = f" {SIGN}" if entry.test is not None and entry.test.is_tie else ""
    numbers = (
        ("mean", entry.mean),
        ("deviation", entry.deviation),
        ("p (Holm)", entry.test.corrected if entry.test else None),
    )
    return Cell(
        column.text(list(entry.values.values()), runs) + sign,
        entry.best,
        numbers if not column.is_cost else numbers[:2],
    )


@dataclass(frozen=True)
class Column:
    """One figure."""

    key: str

    @property
    def label(self) -> str:
        return LABELS.get(self.key, self.key)

    @property
    def _figure(self) -> str:
        """The figure's name without the client or domain."""
        return self.key.rsplit(".", 1)[-1] if self.key.startswith("by.") else self.key

    @property
    def better(self) -> str | None:
        """'large', 'small', or None if the figure only describes a run."""
        if self._figure.startswith(BETTER_SMALL):
            return "small"
        return "large" if is_share(self._figure) else None

    @property
    def is_cost(self) -> bool:
        """Whether this is the time or the number of bytes, which say nothing about the model."""
        return self.key in COSTS

    def text(self, values: Sequence[float], runs: int) -> str:
        """Return the mean and the deviation, with the number of runs if the figure is not defined in all of them."""
        if not values:
            return "-"
        some = "" if len(values) == runs else f" ({len(values)} of {runs})"
        return self._format(mean(values), deviation(values)) + some

    def shown_mean(self, values: Sequence[float]) -> str:
        """Return the mean alone; rows that show the same mean are equally good."""
        return self._format(mean(values), None)

    def _format(self, center: float, spread: float | None) -> str:
        if self.key.startswith("bytes_"):
            return size(center)
        if spread is None and is_count(self._figure):
            return f"{center:g}"
        scale, decimals, unit = self._unit()
        about = "" if spread is None else f" ± {scale * spread:.{decimals}f}"
        return f"{scale * center:.{decimals}f}{about}{unit}"

    def _unit(self) -> tuple[int, int, str]:
        """Return the factor, the number of decimals and the unit."""
        if self.key == "seconds":
            return 1, 1, " s"
        if is_share(self._figure):
            return 100, 1, " %"
        return 1, 1 if is_count(self._figure) else 2, ""


def columns_for(runs: Sequence[FinishedRun], metrics: Iterable[str] = ()) -> list[Column]:
    """Return the requested columns, or those that the final table of a run has."""
    measured = {key for run in runs for key in run.figures}
    requested = list(dict.fromkeys(metrics))
    for key in requested:
        if key not in measured:
            raise unknown_name("--metric", key, [name for name in measured if not name.startswith("by.")])
    return [Column(key) for key in requested or (*shown_figures(measured), *COSTS) if key in measured]
