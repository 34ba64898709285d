"""Histograms of unknown scores: known and unknown samples in one frame, with the threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedwild.results.report.charts.frame import Axis, Frame, group, legend, line, symbol
from fedwild.results.report.charts.scale import Real, rounded_range
from fedwild.results.report.markup import Html, joined, short, tag

BINS = 40


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
    entries = [(step_symbol(number), f"{name} ({len(values)})") for number, (name, values) in enumerate(shown)]
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


def step_symbol(number: int) -> Html:
    return symbol(group(tag("path", d="M3 11V3H23V11", class_="steps"), class_=f"s{number}"))
