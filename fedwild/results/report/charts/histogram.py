"""Histograms of scores: known and unknown samples in one frame, with the threshold between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedwild.results.report.charts.frame import Axis, Frame, group, key, line, sign
from fedwild.results.report.charts.scale import Real, widened
from fedwild.results.report.markup import Html, joined, short, tag

BINS = 40


def histogram(groups: Sequence[tuple[str, Real]], x_name: str, threshold: float | None) -> Html:
    """Outlines of each group's shares per bin; heights go by the square root of the group's share."""
    filled = [(name, values[np.isfinite(values)]) for name, values in groups]
    filled = [(name, values) for name, values in filled if len(values)]
    if not filled:
        return tag("p", "No sample has a finite score.", class_="why")
    edges = edges_of(np.concatenate([values for _, values in filled]))
    # The outermost bins also hold what lies beyond them.
    shares = [np.histogram(values.clip(edges[0], edges[-1]), edges)[0] / len(values) for _, values in filled]
    top = widened(0, float(max(share.max() for share in shares)))[1]
    frame = Frame(
        Axis(x_name, float(edges[0]), float(edges[-1])), Axis("share of the group", 0, top, percent=True, root=True)
    )
    content = [steps(frame, edges, share, number) for number, share in enumerate(shares)]
    entries = [(block(number), f"{name} ({len(values)})") for number, (name, values) in enumerate(filled)]
    if threshold is not None and edges[0] <= threshold <= edges[-1]:
        x = float(frame.across(threshold))
        content.append(line(x, frame.top, x, frame.bottom, "threshold"))
    if threshold is not None:
        entries.append((sign(line(13, 0, 13, 12, "threshold")), threshold_name(threshold)))
    return joined([frame.drawn(f"histogram of {x_name}", *content), key(entries)])


def threshold_name(threshold: float) -> str:
    return f"threshold {threshold:.4g}" if math.isfinite(threshold) else "no threshold: everything is accepted"


def edges_of(values: Real) -> Real:
    """Of bins for all values; a few that are far out do not make the bins of all others wide."""
    low, high = (float(value) for value in np.quantile(values, [0.002, 0.998]))
    room = 0.25 * (high - low)
    least, most = float(values.min()), float(values.max())
    low, high = least if least > low - room else low, most if most < high + room else high
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-300):
        low, high = low - 0.5, high + 0.5
    edges: Real = np.linspace(low, high, BINS + 1)
    return edges


def steps(frame: Frame, edges: Real, shares: Real, number: int) -> Html:
    """The outline of a group's bins, filled lightly."""
    x, y = frame.across(edges), frame.up(shares)
    corners = [f"M{short(x[0])} {short(frame.bottom)}"]
    for left, right, height in zip(x[:-1].tolist(), x[1:].tolist(), y.tolist(), strict=True):
        corners.append(f"L{short(left)} {short(height)}H{short(right)}")
    corners.append(f"V{short(frame.bottom)}")
    return group(tag("path", d="".join(corners), class_="steps"), class_=f"s{number}")


def block(number: int) -> Html:
    return sign(group(tag("path", d="M3 11V3H23V11", class_="steps"), class_=f"s{number}"))
