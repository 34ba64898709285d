"""Tables as pictures: the larger a cell, the darker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedwild.core.text import cut
from fedwild.results.report.charts.frame import label, line, svg, text_length
from fedwild.results.report.charts.raster import shades_uri
from fedwild.results.report.charts.scale import Real
from fedwild.results.report.markup import Html, tag

MAX_CELLS = 40 * 40
"""A larger table is drawn as one picture."""
NAME, LINE = 16, 14.0
FEW, ROOMY, CLOSE = 8, 44, 32
"""Up to so many columns are roomy; more are closer together, so that the page need not make their text small."""
MIDDLE, FULL = 0.6, 0.8
"""Shades from which on a cell's text has the colour for the middle, and for the strongest shades."""


@dataclass(frozen=True)
class Heat:
    """Shades from 0 to 1 with names for rows and columns, and texts in the cells where there is room."""

    rows: Sequence[str]
    columns: Sequence[str]
    shades: Real
    texts: Sequence[Sequence[str]]
    down_name: str
    across_name: str
    apart: bool = False
    """Whether the last row and the last column are set apart by a line."""

    @cached_property
    def left(self) -> float:
        return 10 + max((text_length(cut(name, NAME)) for name in self.rows), default=0)

    @cached_property
    def width(self) -> float:
        """Of the whole; wider where columns are many."""
        cell = ROOMY if len(self.columns) <= FEW else CLOSE
        return float(np.clip(self.left + 8 + cell * len(self.columns), 300, 640))

    @cached_property
    def cell(self) -> tuple[float, float]:
        across = min(54.0, (self.width - self.left - 8) / max(1, len(self.columns)))
        down = float(np.clip(420 / max(1, len(self.rows)), 2.4, 26))
        return across, down

    @cached_property
    def upright(self) -> bool:
        """Whether the columns' names need more room than a cell has."""
        return max((text_length(cut(name, NAME)) for name in self.columns), default=0) > self.cell[0] - 4

    @cached_property
    def top(self) -> float:
        longest = max((text_length(cut(name, NAME)) for name in self.columns), default=0)
        return 24 + (longest if self.upright else LINE)

    def place(self, row: float, column: float) -> tuple[float, float]:
        return self.left + column * self.cell[0], self.top + row * self.cell[1]


def heat_map(heat: Heat, about: str) -> Html:
    """The table: rows' names at the left, columns' names on top."""
    rows, columns = heat.shades.shape
    cells = picture_of(heat) if rows * columns > MAX_CELLS else cells_of(heat)
    content = [
        *cells,
        *names_of(heat),
        label(2, 12, f"{heat.down_name} (down), {heat.across_name} (across)", "start", "name"),
    ]
    if heat.apart and rows > 1 and columns > 1:
        (left, top), (right, bottom) = heat.place(0, 0), heat.place(rows, columns)
        x, y = heat.place(rows - 1, columns - 1)
        content += [line(left, y, right, y, "apart"), line(x, top, x, bottom, "apart")]
    return svg(heat.width, heat.place(rows, 0)[1] + 6, about, *content)


def cells_of(heat: Heat) -> list[Html]:
    """A rectangle for each cell that is not empty."""
    width, height = heat.cell
    parts: list[Html] = []
    for row, column in np.ndindex(*heat.shades.shape):
        shade, text, (x, y) = float(heat.shades[row, column]), heat.texts[row][column], heat.place(row, column)
        if shade <= 0:
            continue
        title = tag("title", f"{heat.rows[row]}, {heat.columns[column]}: {text}")
        opacity = f"{max(0.04, shade):.2f}"
        parts.append(
            tag(
                "rect",
                title,
                x=x + 0.5,
                y=y + 0.5,
                width=width - 1,
                height=height - 1,
                class_="cell",
                fill_opacity=opacity,
            )
        )
        if height >= LINE and text_length(text) <= width - 3:
            parts.append(label(x + width / 2, y + height / 2 + 4, text, class_=f"tick {ink(shade)}"))
    return parts


def ink(shade: float) -> str:
    """The colour of text on a cell, by its name in the style sheet."""
    return "on-pale" if shade < MIDDLE else "on-middle" if shade < FULL else "on-full"


def picture_of(heat: Heat) -> list[Html]:
    """All cells as one picture, a pixel each."""
    (left, top), (right, bottom) = heat.place(0, 0), heat.place(*heat.shades.shape)
    return [
        tag(
            "image",
            href=shades_uri(heat.shades),
            x=left,
            y=top,
            width=right - left,
            height=bottom - top,
            preserveAspectRatio="none",
            class_="pixels",
        )
    ]


def names_of(heat: Heat) -> list[Html]:
    """Names, every n-th where they are dense."""
    (width, height), parts = heat.cell, []
    for row in named(len(heat.rows), height, heat.apart):
        x, y = heat.place(row, 0)
        parts.append(label(x - 6, y + height / 2 + 4, cut(heat.rows[row], NAME), "end"))
    for column in named(len(heat.columns), width, heat.apart) if heat.upright else range(len(heat.columns)):
        x, y = heat.place(0, column)
        name = cut(heat.columns[column], NAME)
        if heat.upright:
            turn = f"translate({x + width / 2 + 4:.1f} {y - 5:.1f}) rotate(-90)"
            parts.append(label(0, 0, name, "start", transform=turn))
        else:
            parts.append(label(x + width / 2, y - 5, name))
    return parts


def named(count: int, pitch: float, apart: bool) -> range:
    """Which of so many rows or columns have their names written; one that is set apart always has."""
    step = int(-(-LINE // pitch))
    return range((count - 1) % step if apart else 0, count, step)
