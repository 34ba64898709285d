"""Line charts: several series over a common axis, with gaps where values are missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedwild.core.text import cut, percent
from fedwild.results.report.charts.frame import STYLES, Axis, Frame, group, label, legend, line, symbol, text_width
from fedwild.results.report.charts.scale import rounded_range, thin_out, value_range
from fedwild.results.report.markup import Html, joined, short, tag

MAX_MARKERS = 14
"""The maximum number of markers on a line. Markers distinguish series without colours."""


@dataclass(frozen=True)
class Series:
    """One line."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]


def line_chart(
    series: Sequence[Series],
    x_name: str,
    y_name: str,
    *,
    is_percent: bool = False,
    include_zero: bool = True,
    borders: Sequence[tuple[float, str]] = (),
) -> Html:
    """Return a chart of lines. The axis of shares, shown as percentages, runs at least from 0 to 1.

    `borders` are values on the x axis where something begins, with its name.
    """
    shown = [s for s in series if any(map(has_value, s.y))]
    if not shown:
        return tag("p", "No values to draw yet.", class_="why")
    low, high = value_range([x for s in shown for x in s.x])
    bottom, top = rounded_range(*value_range([y for s in shown for y in s.y], include_zero))
    if is_percent:
        bottom, top = min(0.0, bottom), max(1.0, top)
    whole = all(float(x).is_integer() for s in shown for x in s.x)
    frame = Frame(Axis(x_name, low, high, whole=whole), Axis(y_name, bottom, top, percent=is_percent))
    content = [*draw_borders(frame, borders), *(draw_series(frame, s, number) for number, s in enumerate(shown))]
    about = f"{y_name} over {x_name}: {', '.join(s.name for s in shown[:STYLES])}"
    chart = frame.draw(about, *content)
    # A single line that has the name of the axis needs no legend.
    single = len(shown) == 1 and shown[0].name == y_name
    return chart if single else joined([chart, legend([(line_symbol(i), s.name) for i, s in enumerate(shown)])])


def draw_series(frame: Frame, series: Series, number: int) -> Html:
    """Return a line with markers, whose tooltips give the values."""
    x, y, points = points_of(frame, series)
    finite = np.nonzero(np.isfinite(y))[0]
    marked = sorted({*finite[:: -(-len(finite) // MAX_MARKERS)].tolist(), *finite[-1:].tolist()})
    texts = [percent(y[i]) if frame.y.percent else f"{y[i]:.4g}" for i in marked]
    markers = [
        tag(
            "path",
            tag("title", f"{series.name}: {text} ({frame.x.name} {x[i]:g})"),
            d=marker(number, *points[i].tolist()),
        )
        for i, text in zip(marked, texts, strict=True)
    ]
    curve = tag("path", d=path(points), class_="line")
    return group(curve, group(*markers, class_="marks"), class_=f"s{number % STYLES}")


def points_of(frame: Frame, series: Series) -> tuple[Any, Any, Any]:
    """Return x (n,), y (n,) with NaN for missing values, and their coordinates (n, 2)."""
    thinned = thin_out(series.x, [value if has_value(value) else math.nan for value in series.y])
    x, y = (column.astype(float) for column in thinned)
    return x, y, np.column_stack([frame.across(x), frame.up(y)])


def has_value(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def path(points: Any) -> str:
    """Return a line through points (n, 2), interrupted where one is not finite."""
    pieces: list[str] = []
    pen_down = False
    for x, y in np.asarray(points, dtype=float).tolist():
        if not (math.isfinite(x) and math.isfinite(y)):
            pen_down = False
            continue
        pieces.append(f"{'L' if pen_down else 'M'}{short(x)} {short(y)}")
        pen_down = True
    return "".join(pieces)


def marker(number: int, x: float, y: float, r: float = 3) -> str:
    """Return a circle, square, diamond or triangle, by the number of the series, as a path."""
    shapes = (
        f"m{short(-r)} 0a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0",
        f"m{short(-r)} {short(-r)}h{2 * r}v{2 * r}h{-2 * r}z",
        f"m0 {short(-r - 1)}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
        f"m0 {short(-r - 1)}l{r + 0.5} {2 * r}h{-2 * r - 1}z",
    )
    return f"M{short(x)} {short(y)}{shapes[number % len(shapes)]}"


def line_symbol(number: int) -> Html:
    """Return a short line with its marker, for the legend."""
    parts = tag("path", d="M1 6L25 6", class_="line"), tag("path", d=marker(number, 13, 6), class_="marks")
    return symbol(group(*parts, class_=f"s{number % STYLES}"))


def draw_borders(frame: Frame, borders: Sequence[tuple[float, str]]) -> list[Html]:
    """Return thin vertical lines with their names; a name is omitted if it would cover the one before."""
    parts: list[Html] = []
    free = 2 + text_width(frame.y.name) + 12
    for value, name in borders:
        x = float(frame.across(value))
        parts.append(line(x, frame.top - 8, x, frame.bottom, "border"))
        text = cut(name, 14)
        if x + 3 >= free and x + 3 + text_width(text) <= frame.width:
            parts.append(label(x + 3, frame.top - 9, text, "start", "note"))
            free = x + 3 + text_width(text) + 6
    return parts


def curve_chart(curve: Series, y_name: str, x_name: str, diagonal: bool, point: tuple[float, float]) -> Html:
    """Return a curve of shares over shares, such as the ROC curve; `point` marks the threshold."""
    frame = Frame(Axis(x_name, 0, 1, percent=True), Axis(y_name, 0, 1, percent=True), height=300)
    content: list[Html] = []
    entries: list[tuple[Html, str]] = []
    if diagonal:
        content.append(line(frame.left, frame.bottom, frame.right, frame.top, "chance"))
        entries.append((symbol(line(1, 6, 25, 6, "chance")), "chance"))
    _, _, points = points_of(frame, curve)
    content.append(group(tag("path", d=path(points), class_="line"), class_="s0"))
    entries.append((symbol(group(tag("path", d="M1 6L25 6", class_="line"), class_="s0")), curve.name))
    name = "at the threshold"
    x, y = float(frame.across(point[0])), float(frame.up(point[1]))
    content.append(tag("path", tag("title", name), d=marker(0, x, y, 4), class_="here"))
    entries.append((symbol(tag("path", d=marker(0, 13, 6, 4), class_="here")), name))
    return joined([frame.draw(f"{y_name} over {x_name}", *content), legend(entries)])


def many_lines(series: Sequence[Series], x_name: str, y_name: str) -> Html:
    """Return thin lines of the same colour, one per client. The page can highlight one of them by name."""
    low, high = value_range([x for s in series for x in s.x])
    bottom, top = rounded_range(*value_range([y for s in series for y in s.y], include_zero=True))
    frame = Frame(Axis(x_name, low, high, whole=True), Axis(y_name, bottom, top), width=860, height=300)
    lines = [
        tag("path", tag("title", s.name), d=path(points_of(frame, s)[2]), class_="line thin", data_client=s.name)
        for s in series
    ]
    return frame.draw(f"{y_name} over {x_name} of {len(series)} clients", *lines)
