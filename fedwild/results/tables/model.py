"""What a table of results is, whatever it will look like."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One entry: what people read, and for programs the numbers behind it."""

    text: str
    best: bool = False
    """In bold."""
    values: tuple[tuple[str, float | int | None], ...] = ()
    """What CSV has in its place: a column for each, called `HEADING NAME`; nothing: the text itself."""
    number: bool = True
    """Aligned to the right."""


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
        """Whether a column is aligned to the right."""
        return any(row[column].number for row in self.rows)


def words(text: str) -> Cell:
    """A cell that is a name, not a number."""
    return Cell(text, number=False)
