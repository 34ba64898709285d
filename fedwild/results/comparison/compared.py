"""A comparison: rows of runs, columns of figures, and a table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedwild.results.comparison.columns import Column, columns_for
from fedwild.results.comparison.grouping import Group, differing, grouped, named
from fedwild.results.comparison.notes import data_note, left_out_note, other_settings_note, repeated_note, verdict_notes
from fedwild.results.comparison.reading import Found
from fedwild.results.comparison.significance import Verdict, all_against, deviation, mean
from fedwild.core.errors import UserError
from fedwild.results.tables import Cell, ResultTable, words

SIGN = "†"


@dataclass(frozen=True)
class Entry:
    """A figure of a row."""

    values: dict[int, float]
    """By seed."""
    best: bool = False
    """No row shows a better one."""
    test: Verdict | None = None
    """Against the row with the best mean; None for that row itself and where nothing is tested."""

    def described(self) -> dict[str, Any]:
        """For programs."""
        values = list(self.values.values())
        test = self.test or Verdict("", None)
        return {
            "mean": mean(values) if values else None,
            "deviation": deviation(values) if values else None,
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
        """For each column, a figure for each row."""
        return {column.key: compared(column, self.rows) for column in self.columns}

    def table(self, title: str = "") -> ResultTable:
        """For people."""
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
        """What a reader of the table must know."""
        tested = [(row.name, entries[i].test) for entries in self.entries.values() for i, row in enumerate(self.rows)]
        return (*verdict_notes(SIGN, tested), *self.notes)

    def described(self) -> dict[str, Any]:
        """For programs: plain values."""
        return {
            "columns": [{"name": c.key, "label": c.label, "better": c.better} for c in self.columns],
            "rows": [
                {
                    "name": row.name,
                    "settings": {key: row.settings[key] for key in self._keys if key in row.settings},
                    "seeds": list(row.runs),
                    "runs": [str(run.path) for run in row.runs.values()],
                    "figures": {key: entries[index].described() for key, entries in self.entries.items()},
                }
                for index, row in enumerate(self.rows)
            ],
            "notes": list(self.all_notes()),
        }

    @cached_property
    def _keys(self) -> list[str]:
        return differing(row.runs for row in self.rows)


def compare(found: Found, metrics: Iterable[str] = (), by: Sequence[str] = ()) -> Comparison:
    """Runs that differ in their seed only become one row; rows are called by what differs, or by the settings `by`."""
    if not found.finished:
        names = ", ".join(map(str, found.unfinished))
        raise UserError(f"no run is finished: `fedwild resume` goes on with {names}.")
    groups, repeated = grouped(found.finished)
    notes = [left_out_note(found.unfinished), repeated_note(repeated)]
    return comparison(named(groups, by), metrics, notes)


def comparison(rows: Sequence[Group], metrics: Iterable[str], notes: Iterable[str | None] = ()) -> Comparison:
    """The same for rows that are named already."""
    columns = columns_for([run for row in rows for run in row.runs.values()], metrics)
    every = [*notes, other_settings_note(rows), data_note(rows)]
    return Comparison(tuple(rows), tuple(columns), tuple(note for note in every if note))


def compared(column: Column, rows: Sequence[Group]) -> list[Entry]:
    """A column's entries: what is best, and how sure it is that the others are worse."""
    values = [row.values(column.key) for row in rows]
    there = [index for index, given in enumerate(values) if given]
    if column.better is None or len(rows) < 2 or not there:
        return [Entry(given) for given in values]
    pick: Callable[..., int] = max if column.better == "large" else min
    top = pick(there, key=lambda index: mean(list(values[index].values())))
    shown = column.shown_mean(list(values[top].values()))
    others = [index for index in there if index != top and not column.is_cost]
    tests = dict(zip(others, all_against(values[top], [values[index] for index in others]), strict=True))
    return [
        Entry(given, bool(given) and column.shown_mean(list(given.values())) == shown, tests.get(index))
        for index, given in enumerate(values)
    ]


def cell(column: Column, entry: Entry, runs: int) -> Cell:
    """An entry in a table."""
    values = list(entry.values.values())
    sign = f" {SIGN}" if entry.test is not None and entry.test.is_tie else ""
    numbers = (
        ("mean", mean(values) if values else None),
        ("deviation", deviation(values) if values else None),
        ("p (Holm)", entry.test.corrected if entry.test else None),
    )
    return Cell(column.text(values, runs) + sign, entry.best, numbers if not column.is_cost else numbers[:2])
