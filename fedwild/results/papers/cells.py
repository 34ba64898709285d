"""A paper's table: cells, each identified by its keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedwild.core.errors import UserError, unknown_name
from fedwild.results.papers.measures import Measure


@dataclass(frozen=True)
class Cell:
    """One printed figure, and the run that reproduces it."""

    keys: dict[str, str]
    value: float
    deviation: float | None
    """The number after ±; the table's `spread` says what it means."""
    unit: str
    measure: Measure | None
    """How to compute our figure from a run's result; None if a run has no such figure."""
    settings: dict[str, Any] | None
    """For `fedwild.runs.config.resolve`; None if fedwild has no such run."""
    waiting: str | None
    """What is missing to run the cell here: 'method: ...', 'data: ...' or 'figure: ...'."""


@dataclass(frozen=True)
class Table:
    """A table with numeric results."""

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
