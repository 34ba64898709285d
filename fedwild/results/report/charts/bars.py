"""Bars: a group of horizontal bars for each row, histograms of unknown scores, and reliability diagrams."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from fedwild.core.text import cut, percent
from fedwild.results.report.calibration import Calibration
from fedwild.results.report.charts.frame import Axis, Frame, group, label, legend, line, svg, symbol, text_width
from fedwild.results.report.charts.scale import Real, Scale, rounded_range
from fedwild.results.report.markup import Html, joined, short, tag

WIDTH, BAR, GAP, MAX_NAME = 420.0, 15.0, 10.0, 22
BINS = 40


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
    entries = [(bar_symbol(f"bar s{number}"), name) for number, (name, _) in enumerate(series)]
    return chart if len(series) == 1 else joined([chart, legend(entries)])


def bar_symbol(class_: str) -> Html:
    return symbol(group(tag("rect", x=5, y=1, width=16, height=10), class_=class_))


def reliability_chart(calibration: Calibration) -> Html:
    """Return a bar for each bin of confidence. Bars end on the diagonal if confidence equals accuracy."""
    frame = Frame(Axis("confidence", 0, 1, percent=True), Axis("accuracy", 0, 1, percent=True), height=300)
    content = []
    for low, high, count, accuracy in calibration.rows():
        left, top = float(frame.across(low)), float(frame.up(accuracy))
        width = float(frame.across(high)) - left
        text = f"confidence {100 * low:.0f} to {100 * high:.0f} %: {percent(accuracy)} of {count} correct"
        bar = tag("rect", tag("title", text), x=left + 1, y=top, width=width - 2, height=frame.bottom - top)
        content.append(group(bar, class_="pale s0"))
    content.append(line(frame.left, frame.bottom, frame.right, frame.top, "chance"))
    entries = [
        (bar_symbol("pale s0"), f"answers, ECE {percent(calibration.error)}"),
        (symbol(line(1, 6, 25, 6, "chance")), "perfect calibration"),
    ]
    return joined([frame.draw("reliability diagram", *content), legend(entries)])


def histogram(groups: Sequence[tuple[str, Real]], x_name: str, threshold: float) -> Html:
    """Return the outlines of each group's shares by bin. Heights follow the square root of the share."""
    finite = [(name, values[np.isfinite(values)]) for name, values in groups]
    shown = [(name, values) for name, values in finite if len(values)]
    if not shown:
        return tag("p", "No sample has a finite score.", class_="why")
    edges = bin_edges(np.concatenate([values for _, values in shown]))
    # The first and the last bin also count what lies beyond them.
    shares = [np.histogram(values.clip(edges[0], edges[-1]), edges)[0] / len(values) for _, values in shown]
    top = rounded_range(0, float(max(share.max() for share in shares)))[1]
    frame = Frame(
        Axis(x_name, float(edges[0]), float(edges[-1])), Axis("share of the group", 0, top, percent=True, root=True)
    )
    content = [steps(frame, edges, share, number) for number, share in enumerate(shares)]
    outlines = [group(tag("path", d="M3 11V3H23V11", class_="steps"), class_=f"s{i}") for i in range(len(shown))]
    entries = [(symbol(o), f"{name} ({len(values)})") for o, (name, values) in zip(outlines, shown, strict=True)]
    if edges[0] <= threshold <= edges[-1]:
        x = float(frame.across(threshold))
        content.append(line(x, frame.top, x, frame.bottom, "threshold"))
    text = f"threshold {threshold:.4g}" if math.isfinite(threshold) else "no threshold: everything is accepted"
    entries.append((symbol(line(13, 0, 13, 12, "threshold")), text))
    return joined([frame.draw(f"histogram of {x_name}", *content), legend(entries)])


def bin_edges(values: Real) -> Real:
    """Return the edges of the bins. A few outliers do not make the bins wider."""
    low, high = (float(value) for value in np.quantile(values, [0.002, 0.998]))
    room = 0.25 * (high - low)
    smallest, largest = float(values.min()), float(values.max())
    low, high = smallest if smallest > low - room else low, largest if largest < high + room else high
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        low, high = low - 0.5, high + 0.5
    edges: Real = np.linspace(low, high, BINS + 1)
    return edges


def steps(frame: Frame, edges: Real, shares: Real, number: int) -> Html:
    """Return the outline of a group's bins."""
    x, y = frame.across(edges), frame.up(shares)
    corners = [f"M{short(x[0])} {short(frame.bottom)}"]
    for left, right, height in zip(x[:-1].tolist(), x[1:].tolist(), y.tolist(), strict=True):
        corners.append(f"L{short(left)} {short(height)}H{short(right)}")
    corners.append(f"V{short(frame.bottom)}")
    return group(tag("path", d="".join(corners), class_="steps"), class_=f"s{number}")
