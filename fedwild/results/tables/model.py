"""A table of results, independent of its format."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One entry: the text, and the numbers behind it."""

    text: str
    best: bool = False
    """Whether it is printed in bold."""
    values: tuple[tuple[str, float | int | None], ...] = ()
    """Names and numbers that replace the text in CSV, each in a column called `HEADING NAME`."""
    number: bool = True
    """Whether it is aligned to the right."""


@dataclass(frozen=True)
class ResultTable:
    """Rows of cells under headings, with a title above and notes below."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.headings):
                raise ValueError(f"a row has {len(row)} cells under {len(self.headings)} headings")

    def is_number(self, column: int) -> bool:
        """Return whether a column is aligned to the right."""
        return any(row[column].number for row in self.rows)


def words(text: str) -> Cell:
    """Return a cell that is text, not a number."""
    return Cell(text, number=False)
