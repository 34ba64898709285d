"""Maps of points in two dimensions, whose axes have no units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedwild.results.report.charts.frame import group, legend, svg, symbol
from fedwild.results.report.charts.scale import Real
from fedwild.results.report.markup import Html, joined, short, tag

SIDE, MARGIN = 420.0, 14.0


@dataclass(frozen=True)
class Cloud:
    """Points of one kind."""

    name: str
    points: Real
    """(n, 2)."""
    marker: str
    """dot, triangle or cross."""
    colour: str
    """A colour in CSS."""


def scatter(clouds: Sequence[Cloud], about: str) -> Html:
    """Return all clouds in a square, with the same scale in both directions, and a legend."""
    places = fit_square(np.concatenate([cloud.points for cloud in clouds]))
    ends = np.cumsum([0, *(len(cloud.points) for cloud in clouds)])
    content = [tag("rect", x=1, y=1, width=SIDE - 2, height=SIDE - 2, class_="field")]
    for cloud, start, end in zip(clouds, ends[:-1], ends[1:], strict=True):
        content.append(draw_points(cloud, places[start:end]))
    entries = [
        (symbol(draw_points(cloud, np.array([[13.0, 6.0]]))), f"{cloud.name} ({len(cloud.points)})") for cloud in clouds
    ]
    return joined([svg(SIDE, SIDE, about, *content), legend(entries)])


def fit_square(points: Real) -> Real:
    """Return the coordinates of points (n, 2) in the square, centred."""
    low, high = points.min(axis=0), points.max(axis=0)
    scale = (SIDE - 2 * MARGIN) / (float((high - low).max()) or 1.0)
    places: Real = SIDE / 2 + (points - (low + high) / 2) * scale
    return places


def draw_points(cloud: Cloud, places: Real) -> Html:
    """Return one path for all points, which keeps the page small."""
    strokes = {"dot": "h0", "triangle": "m0-4l4 7h-8z", "cross": "m-3.5-3.5l7 7m0-7l-7 7"}
    line = "".join(f"M{short(x)} {short(y)}{strokes[cloud.marker]}" for x, y in places.tolist())
    return group(tag("path", d=line, class_=f"point {cloud.marker}", style=f"--own:{cloud.colour}"))
