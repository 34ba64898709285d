"""Line charts: several series over a common axis, with gaps where a value is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedwild.core.text import cut
from fedwild.results.report.charts.frame import SERIES, Axis, Frame, group, key, label, line, sign, text_length
from fedwild.results.report.charts.scale import Scale, reach, thinned, widened
from fedwild.results.report.markup import Html, joined, short, tag

MAX_MARKS = 14
"""On one line; marks tell series apart where colours do not."""


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
    percent: bool = False,
    borders: Sequence[tuple[float, str]] = (),
) -> Html:
    """Lines over whole numbers, such as rounds; `percent` for shares, whose axis runs from 0 to 1.

    `borders` are places on the x axis where something begins, with its name.
    """
    shown = [s for s in series if any(has(y) for y in s.y)]
    if not shown:
        return tag("p", "There are no figures to draw yet.", class_="why")
    low, high = reach([x for s in shown for x in s.x])
    figures = [y for s in shown for y in s.y]
    bottom, top = widened(*reach(figures, from_zero=True))
    if percent:
        bottom, top = min(0.0, bottom), max(1.0, top)
    frame = Frame(Axis(x_name, low, high, whole=True), Axis(y_name, bottom, top, percent=percent))
    content = [*borders_of(frame, borders)]
    content += [drawn(frame, s, number, percent) for number, s in enumerate(shown)]
    about = f"{y_name} over {x_name}: {', '.join(s.name for s in shown[:SERIES])}"
    chart = frame.drawn(about, *content)
    # A single line needs no key where the axis says its name.
    single = len(shown) == 1 and shown[0].name == y_name
    return chart if single else joined([chart, key([(line_sign(i), s.name) for i, s in enumerate(shown)])])


def drawn(frame: Frame, series: Series, number: int, percent: bool) -> Html:
    """A line with marks on it; they say their values when pointed at."""
    x, y = thinned(series.x, [math.nan if not has(value) else value for value in series.y])
    places = np.column_stack([frame.across(x.astype(float)), frame.up(y.astype(float))])
    known = np.nonzero(np.isfinite(y.astype(float)))[0]
    step = -(-len(known) // MAX_MARKS)
    last = known[-1:].tolist()
    marked = sorted({*known[::step].tolist(), *last})
    marks = [
        tag(
            "path",
            tag("title", f"{series.name}: {figure(float(y[i]), percent)} ({frame.x.name} {float(x[i]):g})"),
            d=mark(number, *places[i].tolist()),
        )
        for i in marked
    ]
    curve = tag("path", d=path(places), class_="line")
    return group(curve, group(*marks, class_="marks"), class_=f"s{number % SERIES}")


def has(value: float | None) -> bool:
    """Whether there is a value to draw."""
    return value is not None and math.isfinite(value)


def path(places: Any) -> str:
    """A line through places (n, 2), interrupted where one is not finite; a lone point becomes a dot."""
    pieces: list[str] = []
    pen_down = False
    for x, y in np.asarray(places, dtype=float).tolist():
        if not (math.isfinite(x) and math.isfinite(y)):
            pen_down = False
            continue
        pieces.append(f"{'L' if pen_down else 'M'}{short(x)} {short(y)}")
        pen_down = True
    return "".join(pieces)


def mark(number: int, x: float, y: float, r: float = 3) -> str:
    """A circle, square, diamond or triangle, by the number of the series, as a path."""
    shapes = (
        f"m{short(-r)} 0a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0",
        f"m{short(-r)} {short(-r)}h{2 * r}v{2 * r}h{-2 * r}z",
        f"m0 {short(-r - 1)}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
        f"m0 {short(-r - 1)}l{r + 0.5} {2 * r}h{-2 * r - 1}z",
    )
    return f"M{short(x)} {short(y)}{shapes[number % len(shapes)]}"


def line_sign(number: int) -> Html:
    """A bit of line with its mark, for the key."""
    parts = tag("path", d="M1 6L25 6", class_="line"), tag("path", d=mark(number, 13, 6), class_="marks")
    return sign(group(*parts, class_=f"s{number % SERIES}"))


def borders_of(frame: Frame, borders: Sequence[tuple[float, str]]) -> list[Html]:
    """Thin lines where something begins; a name is left out where the one before needs the room."""
    parts: list[Html] = []
    free = 2 + text_length(frame.y.name) + 12
    for place, name in borders:
        x = float(frame.across(place))
        parts.append(line(x, frame.top - 8, x, frame.bottom, "border"))
        text = cut(name, 14)
        if x + 3 >= free and x + 3 + text_length(text) <= frame.width:
            parts.append(label(x + 3, frame.top - 9, text, "start", "note"))
            free = x + 3 + text_length(text) + 6
    return parts


def figure(value: float, percent: bool) -> str:
    return f"{100 * value:.1f} %" if percent else f"{value:.4g}"


def curve_chart(
    curves: Sequence[Series], x_name: str, y_name: str, diagonal: bool, point: tuple[float, float, str] | None
) -> Html:
    """Curves of shares over shares, both from 0 to 1, such as ROC; `point` is where the threshold is on it."""
    frame = Frame(Axis(x_name, 0, 1, percent=True), Axis(y_name, 0, 1, percent=True), height=300)
    content: list[Html] = []
    entries: list[tuple[Html, str]] = []
    if diagonal:
        content.append(line(frame.left, frame.bottom, frame.right, frame.top, "chance"))
        entries.append((sign(line(1, 6, 25, 6, "chance")), "by chance"))
    for number, curve in enumerate(curves):
        x, y = thinned(curve.x, curve.y)
        places = np.column_stack([frame.across(x.astype(float)), frame.up(y.astype(float))])
        content.append(group(tag("path", d=path(places), class_="line"), class_=f"s{number % SERIES}"))
        stroke = tag("path", d="M1 6L25 6", class_="line")
        entries.append((sign(group(stroke, class_=f"s{number % SERIES}")), curve.name))
    if point is not None:
        across, up, name = point
        place = float(frame.across(across)), float(frame.up(up))
        content.append(tag("path", tag("title", name), d=mark(0, *place, 4), class_="here"))
        entries.append((sign(tag("path", d=mark(0, 13, 6, 4), class_="here")), name))
    return joined([frame.drawn(f"{y_name} over {x_name}", *content), key(entries)])


def many_lines(series: Sequence[Series], x_name: str, y_name: str) -> Html:
    """Thin lines of the same kind, one of which the page can bring out by its name."""
    low, high = reach([x for s in series for x in s.x])
    bottom, top = widened(*reach([y for s in series for y in s.y], from_zero=True))
    frame = Frame(Axis(x_name, low, high, whole=True), Axis(y_name, bottom, top), width=860, height=300)
    return frame.drawn(
        f"{y_name} over {x_name} of {len(series)} clients",
        *(thin(frame.across, frame.up, s) for s in series),
    )


def thin(across: Scale, up: Scale, series: Series) -> Html:
    x, y = thinned(series.x, [math.nan if not has(value) else value for value in series.y])
    places = np.column_stack([across(x.astype(float)), up(y.astype(float))])
    return tag("path", tag("title", series.name), d=path(places), class_="line thin", data_client=series.name)
