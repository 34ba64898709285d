"""Horizontal bars: a group of bars for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedwild.core.text import cut
from fedwild.results.report.charts.frame import group, label, legend, line, svg, symbol, text_width
from fedwild.results.report.charts.scale import Scale
from fedwild.results.report.markup import Html, joined, tag

WIDTH, BAR, GAP, MAX_NAME = 420.0, 15.0, 10.0, 22


def bar_chart(
    rows: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], about: str, to_text: Callable[[float], str]
) -> Html:
    """Return one bar per row and series, with its value as text at its end. A single series has no legend."""
    names = [cut(row, MAX_NAME) for row in rows]
    left = 8 + max(map(text_width, names), default=0)
    values = np.array([values for _, values in series], dtype=float)
    room = 10 + max((text_width(to_text(float(value))) for value in values.flat), default=0)
    across = Scale(0, float(values.max(initial=0)) or 1.0, left, WIDTH - room)
    pitch = BAR * len(series) + GAP
    content = [line(left, 2, left, 2 + pitch * len(rows), "axis")]
    for row, name in enumerate(names):
        top = 2 + row * pitch + GAP / 2
        content.append(label(left - 6, top + BAR * len(series) / 2 + 4, name, "end"))
        for number, value in enumerate(values[:, row].tolist()):
            y, end = top + number * BAR, max(left, float(across(value)))
            bar = tag("rect", x=left, y=y + 1, width=max(0.5, end - left), height=BAR - 2)
            content.append(group(bar, class_=f"bar s{number}"))
            content.append(label(end + 5, y + BAR / 2 + 4, to_text(value), "start"))
    chart = svg(WIDTH, 6 + pitch * len(rows), about, *content)
    entries = [(swatch(number), name) for number, (name, _) in enumerate(series)]
    return chart if len(series) == 1 else joined([chart, legend(entries)])


def swatch(number: int) -> Html:
    return symbol(group(tag("rect", x=5, y=1, width=16, height=10), class_=f"bar s{number}"))
