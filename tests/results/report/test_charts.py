"""Ticks, coordinates, gaps and sizes of charts."""

from __future__ import annotations

import base64
import io
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fedwild.results.report.charts.bars import BINS, bar_chart, bin_edges, histogram
from fedwild.results.report.charts.heat import Heat, heat_map
from fedwild.results.report.charts.lines import Series, line_chart, path
from fedwild.results.report.charts.raster import MAX_BYTES, MAX_PIXELS, embed_image, shades_uri
from fedwild.results.report.charts.scale import (
    MAX_POINTS,
    Scale,
    root_ticks,
    rounded_range,
    thin_out,
    tick_labels,
    ticks,
    value_range,
)
from fedwild.results.report.charts.scatter import Cloud, scatter


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_within_the_range_and_evenly_spaced(low: float, width: float) -> None:
    found = ticks(low, low + width)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-6 * width <= value <= low + width * (1 + 1e-6) for value in found)
    gaps = np.diff(found)
    assert np.allclose(gaps, gaps[:1] if len(gaps) else 0, rtol=1e-6)


def test_ticks_of_rounds_are_whole_numbers() -> None:
    assert ticks(1, 3, whole=True) == [1, 2, 3]


def test_tick_labels_have_as_many_decimals_as_needed() -> None:
    assert tick_labels([0.0, 0.2, 0.4]) == ["0.0", "0.2", "0.4"]
    assert tick_labels([0, 5, 10]) == ["0", "5", "10"]
    assert tick_labels([0.0, 0.5, 1.0], percent=True) == ["0 %", "50 %", "100 %"]
    assert len(set(tick_labels(ticks(0, 0.7)))) == len(ticks(0, 0.7))


@pytest.mark.parametrize("values", [[], [None], [math.nan], [0.0], [5.0, 5.0], [-3.0], [math.inf, 2.0]])
@pytest.mark.parametrize("include_zero", [True, False])
def test_range_is_never_empty(values: list[float | None], include_zero: bool) -> None:
    low, high = value_range(values, include_zero)
    assert math.isfinite(low)
    assert high > low
    assert rounded_range(low, high)[1] > rounded_range(low, high)[0]
    assert not include_zero or low <= 0 <= high


def test_root_ticks_are_well_apart_and_end_at_the_top() -> None:
    for high in (0.03, 0.2, 1.0):
        found = root_ticks(high)
        places = np.sqrt(np.array(found) / high)
        assert found[0] == 0
        assert found[-1] == high
        assert np.diff(places).min() > 0.1


def test_root_scale_follows_the_square_root() -> None:
    scale = Scale(0, 4, 100, 0, root=True)
    assert [scale(v) for v in (0, 1, 4)] == [100, 50, 0]


def test_thinned_curves_keep_their_ends_and_their_rows() -> None:
    x = np.arange(10_000)
    few, squares = thin_out(x, x**2)
    assert len(few) <= MAX_POINTS
    assert few[0] == 0
    assert few[-1] == 9999
    assert (squares == few**2).all()


def test_lines_have_gaps_at_missing_values() -> None:
    assert path([(0, 1), (1, 2), (2, math.nan), (3, 4)]) == "M0 1L1 2M3 4"
    chart = line_chart([Series("a", [1, 2, 3], [1.0, None, 2.0])], "round", "a")
    line = re.search(r'<path d="([^"]*)" class="line">', chart)
    assert line is not None
    assert line[1].count("M") == 2
    assert "nan" not in chart


def test_chart_without_finite_values_says_so() -> None:
    assert "No values to draw yet" in line_chart([Series("loss", [1, 2], [None, math.nan])], "round", "loss")


def test_series_differ_by_markers_whose_tooltips_give_values() -> None:
    series = [Series("a", [1, 2], [0.1, 0.2]), Series("b", [1, 2], [0.3, 0.4])]
    chart = line_chart(series, "round", "share", is_percent=True)
    assert "<title>a: 20.0 % (round 2)</title>" in chart
    shapes = re.findall(r'd="M[\d.]+ [\d.]+(m[^"]+)"><title>', chart)
    assert len(shapes) == 4
    assert len(set(shapes)) == 2


def tick_texts(chart: str) -> list[float]:
    return [float(text) for text in re.findall(r'class="tick">([\d.-]+)<', chart)]


def test_axes_need_not_be_whole_nor_include_0() -> None:
    line = Series("a", [0.1, 0.2], [-100.0, -98.0])
    texts = tick_texts(line_chart([line], "distance", "value", include_zero=False))
    assert {text for text in texts if 0 < text < 1} >= {0.1, 0.2}
    assert -100 in texts
    assert 0 not in texts
    assert 0 in tick_texts(line_chart([line], "distance", "value"))


def test_histogram_counts_each_finite_score_once() -> None:
    rng = np.random.default_rng(0)
    known = rng.normal(size=500)
    edges = bin_edges(np.append(known, 1e9))
    assert len(edges) == BINS + 1
    assert edges[-1] < 1e3, "one outlier must not make all bins wide"
    chart = histogram([("known", known), ("unknown", np.array([math.nan, 3.0]))], "score", 0.5)
    assert "known (500)" in chart
    assert "unknown (1)" in chart
    assert "threshold 0.5" in chart


def test_histogram_of_equal_scores_without_threshold() -> None:
    chart = histogram([("known", np.zeros(4)), ("unknown", np.zeros(0))], "score", math.inf)
    assert "<svg" in chart
    assert "everything is accepted" in chart


def heat(rows: int, columns: int, shades: float = 0.5) -> str:
    names = [f"n{i}" for i in range(max(rows, columns))]
    texts = [["1"] * columns] * rows
    made = Heat(names[:rows], names[:columns], np.full((rows, columns), shades), texts, last_apart=True)
    return heat_map(made, "table")


@pytest.mark.parametrize(("rows", "columns"), [(200, 100), (5, 100)])
def test_large_tables_are_one_image(rows: int, columns: int) -> None:
    chart = heat(rows, columns)
    assert chart.count("<image") == 1
    assert 'class="cell"' not in chart
    assert len(chart) < 20_000


def test_small_tables_have_cells_with_texts_also_where_the_shade_is_0() -> None:
    assert heat(5, 4).count('class="cell"') == 20
    assert heat(5, 4).count(">1</text>") == 20
    assert heat(5, 4, shades=-0.5).count('class="cell"') == 0
    assert heat(5, 4, shades=-0.5).count(">1</text>") == 20


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_very_large_tables_are_averaged() -> None:
    assert decoded(shades_uri(np.ones((20, 30)))).size == (30, 20)
    image = decoded(shades_uri(np.ones((1000, 2000))))
    assert image.width * image.height <= MAX_PIXELS
    assert image.getpixel((0, 0)) == (0, 114, 178, 255)


def test_bars_are_proportional_to_values() -> None:
    chart = bar_chart(["a", "b"], [("s", [2.0, 1.0])], "bars", lambda v: f"{v:g} s")
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)" height="13"', chart)]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert "2 s" in chart


def test_only_several_series_of_bars_have_a_legend() -> None:
    series = [("first", [1.0]), ("second", [2.0])]
    assert 'class="key"' in bar_chart(["a"], series, "bars", str)
    assert 'class="key"' not in bar_chart(["a"], series[:1], "bars", str)


def test_points_of_a_cloud_are_one_path_within_the_square() -> None:
    rng = np.random.default_rng(0)
    chart = scatter([Cloud("a", rng.normal(size=(300, 2)) * 1e4, "dot", "var(--c0)")], "map")
    places = [float(v) for v in re.findall(r"M([\d.-]+) [\d.-]+h0", chart)]
    assert len(places) == 301, "300 points and one in the legend"
    assert all(0 <= x <= 420 for x in places)


def test_noisy_images_are_reduced() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 1400, 3), dtype=np.uint8)
    assert len(embed_image(Image.fromarray(noise), "noise")) < MAX_BYTES * 4 / 3 + 200
