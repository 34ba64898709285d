"""The charts' numbers: ticks, places, gaps and sizes."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwild.results.report.charts.bars import bar_chart, stacked_bars
from fedwild.results.report.charts.heat import Heat, heat_map
from fedwild.results.report.charts.histogram import BINS, edges_of, histogram
from fedwild.results.report.charts.lines import Series, line_chart, path
from fedwild.results.report.charts.raster import LARGEST, picture
from fedwild.results.report.charts.scale import MAX_POINTS, Scale, labels, reach, root_ticks, thinned, ticks, widened
from fedwild.results.report.charts.scatter import Cloud, scatter


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_lie_within_and_are_evenly_spaced(low: float, width: float) -> None:
    found = ticks(low, low + width)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-6 * width <= value <= low + width * (1 + 1e-6) for value in found)
    gaps = np.diff(found)
    assert np.allclose(gaps, gaps[:1] if len(gaps) else 0, rtol=1e-6)


def test_rounds_are_marked_by_whole_numbers_only() -> None:
    assert ticks(1, 3, whole=True) == [1, 2, 3]


def test_labels_have_as_many_decimals_as_they_need() -> None:
    assert labels([0.0, 0.2, 0.4]) == ["0.0", "0.2", "0.4"]
    assert labels([0, 5, 10]) == ["0", "5", "10"]
    assert labels([0.0, 0.5, 1.0], percent=True) == ["0 %", "50 %", "100 %"]
    assert len(set(labels(ticks(0, 0.7)))) == len(ticks(0, 0.7))


@pytest.mark.parametrize("values", [[], [None], [math.nan], [0.0], [5.0, 5.0], [-3.0], [math.inf, 2.0]])
def test_a_range_is_never_empty(values: list[float | None]) -> None:
    low, high = reach(values)
    assert math.isfinite(low)
    assert high > low
    assert widened(low, high)[1] > widened(low, high)[0]


def test_root_ticks_are_well_apart_and_end_at_the_top() -> None:
    for high in (0.03, 0.2, 1.0):
        found = root_ticks(high)
        places = np.sqrt(np.array(found) / high)
        assert found[0] == 0
        assert found[-1] == high
        assert np.diff(places).min() > 0.1


def test_a_root_scale_is_the_square_root() -> None:
    scale = Scale(0, 4, 100, 0, root=True)
    assert [scale(v) for v in (0, 1, 4)] == [100, 50, 0]


def test_thinned_curves_keep_their_ends_and_rows_stay_together() -> None:
    x = np.arange(10_000)
    few, squares = thinned(x, x**2)
    assert len(few) <= MAX_POINTS
    assert few[0] == 0
    assert few[-1] == 9999
    assert (squares == few**2).all()


def test_a_line_has_gaps_where_values_are_missing() -> None:
    assert path([(0, 1), (1, 2), (2, math.nan), (3, 4)]) == "M0 1L1 2M3 4"
    chart = line_chart([Series("a", [1, 2, 3], [1.0, None, 2.0])], "round", "a")
    line = re.search(r'<path d="([^"]*)" class="line">', chart)
    assert line is not None
    assert line[1].count("M") == 2
    assert "nan" not in chart


def test_a_chart_of_nothing_but_nan_says_so() -> None:
    assert "no figures" in line_chart([Series("loss", [1, 2], [None, math.nan])], "round", "loss")


def test_series_differ_by_marks_too_and_marks_say_their_values() -> None:
    series = [Series("a", [1, 2], [0.1, 0.2]), Series("b", [1, 2], [0.3, 0.4])]
    chart = line_chart(series, "round", "share", percent=True)
    assert "<title>a: 20.0 % (round 2)</title>" in chart
    shapes = re.findall(r'd="M[\d.]+ [\d.]+(m[^"]+)"><title>', chart)
    assert len(shapes) == 4
    assert len(set(shapes)) == 2


def test_a_histogram_counts_every_finite_score_once() -> None:
    rng = np.random.default_rng(0)
    known = rng.normal(size=500)
    edges = edges_of(np.append(known, 1e9))
    assert len(edges) == BINS + 1
    assert edges[-1] < 1e3, "one value far out must not make all bins wide"
    chart = histogram([("known", known), ("unknown", np.array([math.nan, 3.0]))], "score", 0.5)
    assert "known (500)" in chart
    assert "unknown (1)" in chart
    assert "threshold 0.5" in chart


def test_a_histogram_of_equal_scores_and_no_threshold_is_drawn() -> None:
    chart = histogram([("known", np.zeros(4)), ("unknown", np.zeros(0))], "score", math.inf)
    assert "<svg" in chart
    assert "everything is accepted" in chart


def test_large_tables_are_one_picture_and_small_ones_have_cells() -> None:
    def table(rows: int, columns: int) -> str:
        names = [f"n{i}" for i in range(max(rows, columns))]
        texts = [["1"] * columns] * rows
        heat = Heat(names[:rows], names[:columns], np.full((rows, columns), 0.5), texts, "row", "column", apart=True)
        return heat_map(heat, "table")

    assert table(5, 4).count('class="cell"') == 20
    large = table(200, 100)
    assert large.count("<image") == 1
    assert 'class="cell"' not in large
    assert len(large) < 20_000


def test_bars_end_at_their_share_of_the_largest() -> None:
    chart = bar_chart(["a", "b"], [("s", [2.0, 1.0])], "bars", lambda v: f"{v:g} s")
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)" height="13"', chart)]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert "2 s" in chart


def test_stacked_bars_fill_the_row() -> None:
    chart = stacked_bars(["layer"], ["x", "y"], [[0.25, 0.75]], "parts")
    left, right = (float(w) for w in re.findall(r'width="([\d.]+)" height="15"', chart))
    assert right == pytest.approx(3 * left, abs=0.3)


def test_points_of_a_cloud_are_one_path_within_the_square() -> None:
    rng = np.random.default_rng(0)
    chart = scatter([Cloud("a", rng.normal(size=(300, 2)) * 1e4, "dot", "var(--c0)")], "map")
    places = [float(v) for v in re.findall(r"M([\d.-]+) [\d.-]+h0", chart)]
    assert len(places) == 301, "300 points and one in the key"
    assert all(0 <= x <= 420 for x in places)


def test_noisy_pictures_are_made_small_enough() -> None:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (900, 1400, 3), dtype=np.uint8)
    assert len(picture(Image.fromarray(noise), "noise")) < LARGEST * 4 / 3 + 200
