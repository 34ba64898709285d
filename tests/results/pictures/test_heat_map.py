"""Heat maps: every cell has the colour of its value, and names thin out where there is no room."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fedwild.results.pictures.drawing import blue
from fedwild.results.pictures.heat_map import HeatMap, draw


def table_of(rows: int, columns: int, /, **changed: Any) -> HeatMap:
    """Random shades without text."""
    fields: dict[str, Any] = {
        "title": ["a title"],
        "rows": [f"row {i}" for i in range(rows)],
        "columns": [f"column {i}" for i in range(columns)],
        "shades": np.random.default_rng(0).random((rows, columns)),
        "texts": [[""] * columns] * rows,
        "totals": ["7"] * rows,
    }
    return HeatMap(**{**fields, **changed})


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (40, 7), (7, 130)])
def test_every_cell_has_the_colour_of_its_shade(rows: int, columns: int, apart: bool) -> None:
    table = table_of(rows, columns, apart=apart)
    pixels = np.asarray(draw(table))
    (left, top), (width, height) = table.corner, table.cell
    for row, column in np.ndindex(rows, columns):
        inside = pixels[top + row * height, left + column * width]
        assert tuple(inside) == blue(float(table.shades[row, column]))


def test_text_is_drawn_where_it_has_room_and_can_be_read_on_dark_cells() -> None:
    shades = np.array([[0.0, 1.0, 0.5]])
    table = table_of(1, 3, shades=shades, texts=[["123", "123", "much too long a text"]])
    pixels = np.asarray(draw(table)).astype(int)
    (width, height), places = table.cell, [table.place(0, column) for column in range(3)]
    cells = [pixels[y : y + height - 1, x : x + width - 1].sum(axis=2) for x, y in places]
    assert cells[0].min() < 150
    assert cells[1].max() > 650
    assert np.ptp(cells[2]) == 0


def test_a_line_sets_the_last_row_and_column_apart() -> None:
    plain, apart = (np.asarray(draw(table_of(4, 4, apart=apart))) for apart in (False, True))
    table = table_of(4, 4)
    (left, top), (x, y) = table.corner, table.place(3, 3)
    differ = (plain != apart).any(axis=2)
    assert differ[y - 1, left : x + 60].all()
    assert differ[top : y + 20, x - 1].all()
    assert (apart[differ] == 0).all()
    assert not differ[: y - 1, : x - 1].any()


@pytest.mark.parametrize(("count", "pitch", "apart", "names"), [(4, 15, True, [0, 1, 2, 3]), (5, 8, False, [0, 2, 4])])
def test_every_name_that_has_room_is_written(count: int, pitch: int, apart: bool, names: list[int]) -> None:
    assert list(table_of(2, 2, apart=apart).named(count, pitch)) == names


def test_the_row_set_apart_always_has_its_name() -> None:
    for count, pitch in itertools.product(range(1, 20), [6, 7, 8, 15, 30]):
        named = table_of(2, 2, apart=True).named(count, pitch)
        assert named[-1] == count - 1
        assert named[0] < named.step
        assert named.step * pitch >= 15


def test_the_page_has_room_for_titles_names_and_totals() -> None:
    small = table_of(2, 2)
    wide = table_of(2, 2, title=["a long title " * 20, "and another"])
    assert wide.size[0] > 1000 > small.size[0]
    assert wide.corner[1] > small.corner[1]
    assert table_of(2, 2, totals=["1" * 40] * 2).size[0] > small.size[0] + 100
    named = table_of(2, 2, rows=["x" * 22, "y"], columns=["y", "x" * 22])
    longer = table_of(2, 2, rows=["x" * 999, "y"], columns=["y", "x" * 999])
    assert named.corner > small.corner
    assert 0 <= longer.corner[0] - named.corner[0] < 10
