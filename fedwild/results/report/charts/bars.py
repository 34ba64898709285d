"""Horizontal bars, one group for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedwild.core.text import cut
from fedwild.results.report.charts.frame import group, key, label, line, sign, svg, text_length
from fedwild.results.report.charts.scale import Scale
from fedwild.results.report.markup import Html, joined, tag

WIDTH, BAR, GAP, NAME = 420.0, 15.0, 10.0, 22


def bar_chart(
    rows: Sequence[str], series: Sequence[tuple[str, Sequence[float]]], about: str, shown: Callable[[float], str]
) -> Html:
    """For each row a bar of every series, with its value at the end; `shown` makes a value text."""
    names = [cut(row, NAME) for row in rows]
    left = 8 + max(map(text_length, names), default=0)
    values = np.array([values for _, values in series], dtype=float)
    room = 10 + max((text_length(shown(float(v))) for v in values.flat), default=0)
    across = Scale(0, float(values.max(initial=0)) or 1.0, left, WIDTH - room)
    pitch = BAR * len(series) + GAP
    content = [line(left, 2, left, 2 + pitch * len(rows), "axis")]
    for row, name in enumerate(names):
        top = 2 + row * pitch + GAP / 2
        content.append(label(left - 6, top + BAR * len(series) / 2 + 4, name, "end"))
        for number, value in enumerate(values[:, row].tolist()):
            y = top + number * BAR
            bar = tag("rect", x=left, y=y + 1, width=max(0.5, float(across(value)) - left), height=BAR - 2)
            content.append(group(bar, class_=f"bar s{number}"))
            content.append(label(float(across(value)) + 5, y + BAR / 2 + 4, shown(value), "start"))
    chart = svg(WIDTH, 6 + pitch * len(rows), about, *content)
    return joined([chart, key([(swatch(number), name) for number, (name, _) in enumerate(series)])])


def stacked_bars(rows: Sequence[str], parts: Sequence[str], shares: Sequence[Sequence[float]], about: str) -> Html:
    """For each row one bar, cut into parts that are shares of it."""
    names = [cut(row, NAME) for row in rows]
    left = 8 + max(map(text_length, names), default=0)
    across = Scale(0, 1, left, WIDTH - 8)
    content: list[Html] = []
    for row, name in enumerate(names):
        top = 4 + row * (BAR + GAP)
        content.append(label(left - 6, top + BAR / 2 + 4, name, "end"))
        start = 0.0
        for number, share in enumerate(shares[row]):
            text = f"{parts[number]}: {100 * share:.1f} %"
            x, end = float(across(start)), float(across(start + share))
            bar = tag("rect", tag("title", text), x=x, y=top, width=max(0.0, end - x), height=BAR)
            content.append(group(bar, class_=f"bar s{number}"))
            start += share
    chart = svg(WIDTH, 8 + (BAR + GAP) * len(rows), about, *content)
    return joined([chart, key([(swatch(number), part) for number, part in enumerate(parts)])])


def swatch(number: int) -> Html:
    return sign(group(tag("rect", x=5, y=1, width=16, height=10), class_=f"bar s{number}"))
