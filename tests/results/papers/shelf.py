"""All tables, read once for many tests."""

from __future__ import annotations

from fedwild.results import papers
from fedwild.results.papers import Cell

TABLES = papers.tables()
CELLS = [cell for table in TABLES for cell in table.cells]


def the_cell(table: str, **keys: str) -> Cell:
    """Return the only cell with these keys; which data it waits for is checked again."""
    (cell,) = papers.table(table).only(keys).cells
    return cell


def printed(cell: Cell) -> float:
    """Return the paper's figure of a cell that has one."""
    assert cell.value is not None
    return cell.value
