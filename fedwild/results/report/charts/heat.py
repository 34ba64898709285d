"""Heat maps: the larger the value of a cell, the darker its colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedwild.core.text import cut
from fedwild.results.report.charts.frame import label, line, svg, text_width
from fedwild.results.report.charts.raster import shades_uri
from fedwild.results.report.charts.scale import Real
from fedwild.results.report.markup import Html, tag

MAX_CELLS, MAX_COLUMNS = 40 * 40, 64
"""A table with more cells or columns is drawn as one image."""
MAX_NAME, LINE = 16, 14.0
FEW, WIDE, NARROW = 8, 44, 32
"""Up to FEW columns are WIDE. More columns are NARROW, so that the page does not shrink their text."""
MIDDLE, FULL = 0.6, 0.8
"""The shades from which on the text of a cell has another colour."""


@dataclass(frozen=True)
class Heat:
    """Shades from 0 to 1 with names for rows and columns, and texts for the cells that have room for them."""

    rows: Sequence[str]
    columns: Sequence[str]
    shades: Real
    texts: Sequence[Sequence[str]]
    heading: str = ""
    """Says what rows and columns are."""
    last_apart: bool = False
    """Whether a line separates the last row and the last column."""

    @cached_property
    def left(self) -> float:
        return 10 + max((text_width(cut(name, MAX_NAME)) for name in self.rows), default=0)

    @cached_property
    def column_name_width(self) -> float:
        return max((text_width(cut(name, MAX_NAME)) for name in self.columns), default=0)

    @cached_property
    def width(self) -> float:
        cell = WIDE if len(self.columns) <= FEW else NARROW
        return float(np.clip(self.left + 8 + cell * len(self.columns), 300, 640))

    @cached_property
    def cell(self) -> tuple[float, float]:
        """Width and height of a cell."""
        across = min(54.0, (self.width - self.left - 8) / max(1, len(self.columns)))
        down = float(np.clip(420 / max(1, len(self.rows)), 2.4, 26))
        return across, down

    @cached_property
    def has_upright_names(self) -> bool:
        """Whether the names of columns are wider than cells, so that they are turned."""
        return self.column_name_width > self.cell[0] - 4

    @cached_property
    def top(self) -> float:
        heading = LINE if self.heading else 0
        return 10 + heading + (self.column_name_width if self.has_upright_names else LINE)

    def place(self, row: float, column: float) -> tuple[float, float]:
        """Return the upper left corner of a cell."""
        return self.left + column * self.cell[0], self.top + row * self.cell[1]


def heat_map(heat: Heat, about: str) -> Html:
    """Return the table: the names of rows at the left, those of columns at the top."""
    rows, columns = heat.shades.shape
    is_large = rows * columns > MAX_CELLS or columns > MAX_COLUMNS
    content = [*(as_image(heat) if is_large else as_cells(heat)), *draw_names(heat)]
    if heat.heading:
        content.append(label(2, 12, heat.heading, "start", "name"))
    if heat.last_apart and rows > 1 and columns > 1:
        (left, top), (right, bottom) = heat.place(0, 0), heat.place(rows, columns)
        x, y = heat.place(rows - 1, columns - 1)
        content += [line(left, y, right, y, "apart"), line(x, top, x, bottom, "apart")]
    return svg(heat.width, heat.place(rows, 0)[1] + 6, about, *content)


def as_cells(heat: Heat) -> list[Html]:
    """Return a rectangle for each cell with a shade, and the texts that fit."""
    width, height = heat.cell
    size = {"width": width - 1, "height": height - 1}
    parts: list[Html] = []
    for row, column in np.ndindex(*heat.shades.shape):
        shade, text, (x, y) = float(heat.shades[row, column]), heat.texts[row][column], heat.place(row, column)
        if shade > 0:
            title = tag("title", f"{heat.rows[row]}, {heat.columns[column]}: {text}")
            opacity = f"{max(0.04, shade):.2f}"
            parts.append(tag("rect", title, x=x + 0.5, y=y + 0.5, **size, class_="cell", fill_opacity=opacity))
        if text and height >= LINE and text_width(text) <= width - 3:
            parts.append(label(x + width / 2, y + height / 2 + 4, text, class_=f"tick {ink(shade)}"))
    return parts


def ink(shade: float) -> str:
    """Return the colour of text on a cell, by its name in the style sheet."""
    return "on-pale" if shade < MIDDLE else "on-middle" if shade < FULL else "on-full"


def as_image(heat: Heat) -> list[Html]:
    """Return all cells as one image."""
    (x, y), (right, bottom) = heat.place(0, 0), heat.place(*heat.shades.shape)
    size = {"width": right - x, "height": bottom - y}
    image = shades_uri(heat.shades)
    return [tag("image", href=image, x=x, y=y, **size, preserveAspectRatio="none", class_="pixels")]


def draw_names(heat: Heat) -> list[Html]:
    """Return the names of rows and columns; only every n-th if they are dense."""
    (width, height), parts = heat.cell, []
    for row in named(len(heat.rows), height, heat.last_apart):
        x, y = heat.place(row, 0)
        parts.append(label(x - 6, y + height / 2 + 4, cut(heat.rows[row], MAX_NAME), "end"))
    columns = len(heat.columns)
    for column in named(columns, width, heat.last_apart) if heat.has_upright_names else range(columns):
        x, y = heat.place(0, column)
        name = cut(heat.columns[column], MAX_NAME)
        if heat.has_upright_names:
            turn = f"translate({x + width / 2 + 4:.1f} {y - 5:.1f}) rotate(-90)"
            parts.append(label(0, 0, name, "start", transform=turn))
        else:
            parts.append(label(x + width / 2, y - 5, name))
    return parts


def named(count: int, pitch: float, last_apart: bool) -> range:
    """Return the rows or columns whose names are written; the last one always, if it is separated from the others."""
    step = int(-(-LINE // pitch))
    return range((count - 1) % step if last_apart else 0, count, step)
