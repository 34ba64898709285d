"""Heat maps: every cell has the colour of its number, and names are left out where there is no room."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from fedwild.results.pictures.drawing import INK, LINE, styled
from fedwild.results.pictures.heat_map import CELL_HEIGHTS, CELL_WIDTHS, HeatMap, draw_heat_map, new_figure


def table_of(rows: int, columns: int, /, **changed: Any) -> HeatMap:
    """Random numbers without text."""
    fields: dict[str, Any] = {
        "values": np.random.default_rng(0).random((rows, columns)),
        "rows": [f"row {i}" for i in range(rows)],
        "columns": [f"column {i}" for i in range(columns)],
    }
    return HeatMap(**{**fields, **changed})


@styled()
def drawn(table: HeatMap) -> tuple[Any, Any]:
    """The axes and the image on them."""
    _, axes = new_figure(table)
    return axes, draw_heat_map(axes, table)


def shade(image: Any) -> np.ndarray:
    """The lightness (rows, columns) with which numbers are drawn."""
    colours = image.to_rgba(image.get_array())[..., :3]
    lightness: np.ndarray = colours @ np.array([0.299, 0.587, 0.114])
    return lightness


@pytest.mark.parametrize("last_apart", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (40, 7), (7, 130), (1001, 1001)])
def test_numbers_are_drawn_as_they_are_the_larger_the_darker(rows: int, columns: int, last_apart: bool) -> None:
    table = table_of(rows, columns, last_apart=last_apart)
    axes, image = drawn(table)
    assert np.array_equal(image.get_array(), table.values)
    order = table.values.ravel().argsort()
    assert (np.diff(shade(image).ravel()[order]) <= 1e-9).all()
    # Row 0 is at the top, and every cell is one unit wide and high.
    assert tuple(image.get_extent()) == (-0.5, columns - 0.5, rows - 0.5, -0.5)
    assert (axes.get_xlim(), axes.get_ylim()) == ((-0.5, columns - 0.5), (rows - 0.5, -0.5))


def test_the_scale_begins_at_zero_and_ends_at_the_top() -> None:
    values = np.array([[0.0, 2.0, 4.0]])
    _, image = drawn(table_of(1, 3, values=values))
    assert (image.norm.vmin, image.norm.vmax) == (0, 4)
    _, image = drawn(table_of(1, 3, values=values, top=8.0))
    assert image.norm.vmax == 8
    _, image = drawn(table_of(1, 3, values=values, gamma=0.5))
    assert image.norm(1.0) == pytest.approx(0.5)
    _, image = drawn(table_of(1, 3, values=np.zeros((1, 3))))
    assert image.norm.vmax == 1


def test_numbers_of_both_signs_have_two_hues_around_zero() -> None:
    values = np.array([[-3.0, 0.0, 1.5]])
    _, image = drawn(table_of(1, 3, values=values, top=3.0))
    assert (image.norm.vmin, image.norm.vmax) == (-3, 3)
    minus, zero, plus = image.to_rgba(values)[0, :, :3]
    assert zero.min() > 0.9
    assert minus[2] > minus[1]
    assert plus[0] > plus[2]


def test_missing_numbers_are_blank() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, image = drawn(table_of(2, 2, values=np.array([[np.nan, 1.0], [2.0, np.nan]])))
    assert image.to_rgba(image.get_array())[..., 3].tolist() == [[0, 1], [1, 0]]


def test_texts_are_written_if_they_fit_in_white_on_dark_cells() -> None:
    table = table_of(1, 3, values=np.array([[0.0, 1.0, 0.5]]), texts=[["0", "1", "0.5"]])
    axes, _ = drawn(table)
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [
        ("0", (0, 0)),
        ("1", (1, 0)),
        ("0.5", (2, 0)),
    ]
    assert [to_hex(text.get_color()) for text in axes.texts] == [INK, "#ffffff", INK]
    axes, _ = drawn(table_of(1, 2, texts=[["1", "much too long a text"]]))
    assert len(axes.texts) == 0
    axes, _ = drawn(table_of(100, 100, texts=[["1"] * 100] * 100))
    assert len(axes.texts) == 0


def test_lines_set_the_last_row_and_column_apart() -> None:
    assert list(drawn(table_of(4, 5))[0].lines) == []
    across, down = drawn(table_of(4, 5, last_apart=True))[0].lines
    assert list(np.asarray(across.get_ydata())) == [2.5, 2.5]
    assert list(np.asarray(down.get_xdata())) == [3.5, 3.5]


def test_totals_are_written_right_of_their_rows() -> None:
    axes, _ = drawn(table_of(3, 2, totals=["7", "8", "9"]))
    assert [(text.get_text(), text.xy) for text in axes.texts] == [
        ("7", (1, 0)),
        ("8", (1, 1)),
        ("9", (1, 2)),
    ]


@pytest.mark.parametrize(("rows", "columns", "step"), [(3, 3, (1, 1)), (100, 100, (3, 3)), (1, 1000, (1, 17))])
def test_names_thin_out_where_cells_are_small(rows: int, columns: int, step: tuple[int, int]) -> None:
    axes, _ = drawn(table_of(rows, columns, totals=["1"] * rows))
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"row {i}" for i in range(0, rows, step[0])]
    assert [label.get_text() for label in axes.get_xticklabels()] == [f"column {i}" for i in range(0, columns, step[1])]
    assert len(axes.texts) == len(axes.get_yticks())


def test_the_name_set_apart_is_always_written_and_names_never_overlap() -> None:
    for number, pitch in itertools.product(range(1, 20), [0.01, 0.03, 0.17, 0.5]):
        for last_apart in (False, True):
            named = table_of(2, 2, last_apart=last_apart).named(number, pitch)
            assert named[-1] == number - 1 or not last_apart
            assert named.step * pitch >= LINE - 1e-9
            assert named.step == 1 or (named.step - 1) * pitch < LINE
            assert named[0] < named.step


def test_short_names_of_columns_are_horizontal_and_long_ones_upright() -> None:
    for name, count, angle in (("unknown", 2, 0), ("a longer one", 2, 0), ("a longer one", 20, 90), ("a" * 20, 2, 90)):
        table = table_of(2, count, columns=["a"] * (count - 1) + [name])
        axes, _ = drawn(table)
        assert {label.get_rotation() for label in axes.get_xticklabels()} == {angle}
        assert table.has_upright_names == bool(angle)
    assert table_of(2, 2, columns=["a", "a" * 20]).below > table_of(2, 2, columns=["a", "b"]).below


def test_without_names_columns_are_numbered() -> None:
    axes, _ = drawn(table_of(2, 400, columns=()))
    axes.figure.draw_without_rendering()
    assert [label.get_text() for label in axes.get_xticklabels()][1:3] == ["0", "50"]


def test_names_are_cut() -> None:
    axes, _ = drawn(table_of(1, 1, rows=["x" * 999], columns=["y" * 999]))
    assert axes.get_yticklabels()[0].get_text() == "x" * 23 + "…"
    assert axes.get_xticklabels()[0].get_text() == "y" * 23 + "…"


@pytest.mark.parametrize("shape", [(1, 1), (10, 10), (200, 100), (700, 3), (3, 700)])
def test_a_figure_fits_on_a_page(shape: tuple[int, int]) -> None:
    table = table_of(*shape)
    width, height = table.size
    assert width <= 7.5 + 1e-9
    assert height <= 7.5 + 1e-9
    assert CELL_WIDTHS[0] <= table.cell[0] <= CELL_WIDTHS[2]
    assert CELL_HEIGHTS[0] <= table.cell[1] <= CELL_HEIGHTS[1]
