"""The frame of a chart: its axes with their numbers and names, and the legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fedwild.core.text import cut
from fedwild.results.report.charts.scale import Scale, root_ticks, tick_labels, ticks
from fedwild.results.report.markup import Html, joined, short, tag

CHARACTER = 6.9
"""The width of a character at the text size of charts (11), also in wide fonts."""
MAX_SCALE = 1.25
"""The largest size at which a chart is shown, in pixels per unit."""
STYLES = 8
"""The number of series with different colours and dashes; further series repeat them."""


def text_width(text: str) -> float:
    """Return the approximate width of a text."""
    return CHARACTER * len(text)


def label(x: float, y: float, text: str, anchor: str = "middle", class_: str = "tick", **more: str) -> Html:
    return tag("text", text, x=x, y=y, text_anchor=anchor, class_=class_, **more)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    return tag("path", d=f"M{short(x1)} {short(y1)}L{short(x2)} {short(y2)}", class_=class_)


@dataclass(frozen=True)
class Axis:
    """One axis of a chart."""

    name: str
    low: float
    high: float
    percent: bool = False
    whole: bool = False
    """Whether only whole numbers have ticks, as for rounds."""
    root: bool = False
    """Whether coordinates follow the square root of values, so that small values remain visible."""

    def ticks(self) -> list[tuple[float, str]]:
        """Return the values with a tick, and their texts."""
        values = root_ticks(self.high) if self.root else ticks(self.low, self.high, whole=self.whole)
        return list(zip(values, tick_labels(values, self.percent), strict=True))

    def scale(self, start: float, end: float) -> Scale:
        return Scale(self.low, self.high, start, end, self.root)


@dataclass(frozen=True)
class Frame:
    """A plotting area with an axis below and one at the left."""

    x: Axis
    y: Axis
    width: float = 420
    height: float = 260
    top: ClassVar[float] = 28

    @property
    def left(self) -> float:
        return 12 + max((text_width(text) for _, text in self.y.ticks()), default=0)

    @property
    def right(self) -> float:
        return self.width - 20

    @property
    def bottom(self) -> float:
        return self.height - 38

    @property
    def across(self) -> Scale:
        """The horizontal coordinate of a value."""
        return self.x.scale(self.left, self.right)

    @property
    def up(self) -> Scale:
        """The vertical coordinate of a value."""
        return self.y.scale(self.bottom, self.top)

    def draw(self, about: str, *content: Html) -> Html:
        """Return the chart with its content; `about` is the text for screen readers."""
        return svg(self.width, self.height, about, *self._x_axis(), *self._y_axis(), *content)

    def _x_axis(self) -> list[Html]:
        return [
            line(self.left, self.bottom, self.right, self.bottom, "axis"),
            *(label(self.across(value), self.bottom + 16, text) for value, text in self.x.ticks()),
            label((self.left + self.right) / 2, self.height - 5, self.x.name, class_="name"),
        ]

    def _y_axis(self) -> list[Html]:
        parts = [line(self.left, self.up(value), self.right, self.up(value), "grid") for value, _ in self.y.ticks()]
        parts += [label(self.left - 6, self.up(value) + 4, text, "end") for value, text in self.y.ticks()]
        return [*parts, label(2, 13, self.y.name, "start", "name")]


def svg(width: float, height: float, about: str, *content: Html) -> Html:
    """Return a picture that scales with the page, up to MAX_SCALE."""
    box, limit = f"0 0 {short(width)} {short(height)}", f"max-width:{short(width * MAX_SCALE)}px"
    return tag("svg", *content, viewBox=box, role="img", aria_label=about, class_="chart", style=limit)


def legend(entries: Sequence[tuple[Html, str]]) -> Html:
    """Return the legend below a chart: symbols and what they stand for."""
    return tag("ul", *(tag("li", drawn, cut(name, 40), title=name) for drawn, name in entries), class_="key")


def symbol(*content: Html) -> Html:
    """Return a small picture for the legend."""
    return tag("svg", *content, viewBox="0 0 26 12", class_="sign", aria_hidden="true")


def group(*content: Html, **attributes: str) -> Html:
    return tag("g", joined(content), **attributes)
