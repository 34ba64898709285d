"""The frame of a chart: its axes, their numbers and names, and the key to its series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedwild.core.text import cut
from fedwild.results.report.charts.scale import Scale, labels, root_ticks, ticks
from fedwild.results.report.markup import Html, joined, short, tag

LETTER = 6.9
"""About the width of a character at the charts' text size, 11; wide fonts have room, too."""
LARGEST = 1.25
"""No chart is drawn larger than this, in pixels for each unit."""
SERIES = 8
"""So many series have a colour and a dash of their own; then they repeat."""


def text_length(text: str) -> float:
    """About how wide a text is."""
    return LETTER * len(text)


def label(x: float, y: float, text: str, anchor: str = "middle", class_: str = "tick", **more: str) -> Html:
    """Text at a place."""
    return tag("text", text, x=x, y=y, text_anchor=anchor, class_=class_, **more)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Html:
    return tag("path", d=f"M{short(x1)} {short(y1)}L{short(x2)} {short(y2)}", class_=class_)


@dataclass(frozen=True)
class Axis:
    """What runs along one side of a chart."""

    name: str
    low: float
    high: float
    percent: bool = False
    whole: bool = False
    """Only whole numbers, such as rounds, are marked."""
    root: bool = False
    """Places go by the square root of values, so that small ones are seen beside large ones."""

    def marks(self, about: int) -> tuple[list[float], list[str]]:
        """Values with a tick, and their texts."""
        values = root_ticks(self.high) if self.root else ticks(self.low, self.high, about, self.whole)
        return values, labels(values, self.percent)

    def scale(self, start: float, end: float) -> Scale:
        return Scale(self.low, self.high, start, end, self.root)


@dataclass(frozen=True)
class Frame:
    """A plotting area with an axis below and one at the left."""

    x: Axis
    y: Axis
    width: float = 420
    height: float = 260

    @property
    def left(self) -> float:
        return 12 + max((text_length(text) for text in self.y.marks(5)[1]), default=0)

    @property
    def top(self) -> float:
        return 28

    @property
    def right(self) -> float:
        return self.width - 20

    @property
    def bottom(self) -> float:
        return self.height - 38

    @property
    def across(self) -> Scale:
        return self.x.scale(self.left, self.right)

    @property
    def up(self) -> Scale:
        return self.y.scale(self.bottom, self.top)

    def drawn(self, about: str, *content: Html) -> Html:
        """The chart with its content; `about` is what a screen reader says."""
        parts = [*self._below(), *self._aside(), *content]
        return svg(self.width, self.height, about, *parts)

    def _below(self) -> list[Html]:
        values, texts = self.x.marks(5)
        parts = [label(self.across(v), self.bottom + 16, text) for v, text in zip(values, texts, strict=True)]
        middle = (self.left + self.right) / 2
        return [
            line(self.left, self.bottom, self.right, self.bottom, "axis"),
            *parts,
            label(middle, self.height - 5, self.x.name, class_="name"),
        ]

    def _aside(self) -> list[Html]:
        values, texts = self.y.marks(5)
        parts = [line(self.left, self.up(v), self.right, self.up(v), "grid") for v in values]
        parts += [label(self.left - 6, self.up(v) + 4, text, "end") for v, text in zip(values, texts, strict=True)]
        return [*parts, label(2, 13, self.y.name, "start", "name")]


def svg(width: float, height: float, about: str, *content: Html) -> Html:
    """A picture that scales with the page, but not so far that its text outgrows the page's."""
    box, most = f"0 0 {short(width)} {short(height)}", f"max-width:{short(width * LARGEST)}px"
    return tag("svg", *content, viewBox=box, role="img", aria_label=about, class_="chart", style=most)


def key(entries: Sequence[tuple[Html, str]]) -> Html:
    """The key below a chart: what each sign stands for."""
    items = [tag("li", sign, cut(name, 40), title=name) for sign, name in entries]
    return tag("ul", *items, class_="key")


def sign(*content: Html) -> Html:
    """A small picture for the key."""
    return tag("svg", *content, viewBox="0 0 26 12", class_="sign", aria_hidden="true")


def group(*content: Html, **attributes: str) -> Html:
    return tag("g", joined(content), **attributes)
