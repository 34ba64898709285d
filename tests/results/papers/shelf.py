"""All tables, read once for many tests."""

from __future__ import annotations

from fedwild import papers
from fedwild.results.papers import Cell

TABLES = papers.tables()
CELLS = [cell for table in TABLES for cell in table.cells]


def the_cell(table: str, **keys: str) -> Cell:
    """The only cell with these keys, as it is on this machine now."""
    (cell,) = papers.table(table).only(keys).cells
    return cell
