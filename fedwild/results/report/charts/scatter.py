"""Maps: points in two dimensions whose axes have no units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedwild.results.report.charts.frame import group, key, sign, svg
from fedwild.results.report.charts.scale import Real
from fedwild.results.report.markup import Html, joined, short, tag

SIDE, RIM = 420.0, 14.0


@dataclass(frozen=True)
class Cloud:
    """Points of one kind."""

    name: str
    points: Real
    """(n, 2)."""
    mark: str
    """dot, triangle or cross."""
    colour: str
    """As CSS has it."""


def scatter(clouds: Sequence[Cloud], about: str) -> Html:
    """All clouds in a square, with one scale for both directions; the key names them."""
    places = placed(np.concatenate([cloud.points for cloud in clouds]))
    ends = np.cumsum([0, *(len(cloud.points) for cloud in clouds)])
    content = [tag("rect", x=1, y=1, width=SIDE - 2, height=SIDE - 2, class_="field")]
    for cloud, start, end in zip(clouds, ends[:-1], ends[1:], strict=True):
        content.append(points(cloud, places[start:end]))
    entries = [
        (sign(points(cloud, np.array([[13.0, 6.0]]))), f"{cloud.name} ({len(cloud.points)})") for cloud in clouds
    ]
    return joined([svg(SIDE, SIDE, about, *content), key(entries)])


def placed(points: Real) -> Real:
    """Points (n, 2) as places in the square, in its middle."""
    low, high = points.min(axis=0), points.max(axis=0)
    scale = (SIDE - 2 * RIM) / (float((high - low).max()) or 1.0)
    places: Real = SIDE / 2 + (points - (low + high) / 2) * scale
    return places


def points(cloud: Cloud, places: Real) -> Html:
    """One path for all points of a kind, so that many of them stay small."""
    strokes = {"dot": "h0", "triangle": "m0-4l4 7h-8z", "cross": "m-3.5-3.5l7 7m0-7l-7 7"}
    line = "".join(f"M{short(x)} {short(y)}{strokes[cloud.mark]}" for x, y in places.tolist())
    return group(tag("path", d=line, class_=f"point {cloud.mark}", style=f"--own:{cloud.colour}"))
