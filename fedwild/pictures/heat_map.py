"""A table as a picture: the larger a cell, the darker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedwild.pictures.drawing import Font, blue, cut, text_width, upright

FONT: Font = ImageFont.load_default(size=13)
NAME_LENGTH = 22
TITLE_LINE, NAME_LINE = 18, 15
CELL_WIDTHS, CELL_HEIGHTS = (10, 64), (6, 30)  # least and most
MOST_WIDTH, MOST_HEIGHT = 1200, 900  # of all cells, unless they would be too small
DARK = 0.6  # cells darker than this have white text


@dataclass(frozen=True)
class HeatMap:
    """What is drawn: shades from 0 to 1 with a name for each row and column."""

    title: Sequence[str]
    """Lines on top."""
    rows: Sequence[str]
    columns: Sequence[str]
    shades: NDArray[np.float64]
    """(rows, columns)."""
    texts: Sequence[Sequence[str]]
    """In the cells, where there is room."""
    totals: Sequence[str]
    """Right of each row."""
    apart: bool = False
    """Whether the last row and the last column are set apart by a line."""

    @cached_property
    def cell(self) -> tuple[int, int]:
        """Width and height of a cell."""
        rows, columns = self.shades.shape
        width, height = MOST_WIDTH // columns, MOST_HEIGHT // rows
        return int(np.clip(width, *CELL_WIDTHS)), int(np.clip(height, *CELL_HEIGHTS))

    @cached_property
    def corner(self) -> tuple[int, int]:
        """Where the cells begin, right of the rows' names and below the columns'."""
        left = max(text_width(FONT, cut(name, NAME_LENGTH)) for name in self.rows)
        above = max(text_width(FONT, cut(name, NAME_LENGTH)) for name in self.columns)
        return 12 + left, 22 + len(self.title) * TITLE_LINE + above

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the whole."""
        (left, top), (width, height), (rows, columns) = self.corner, self.cell, self.shades.shape
        title = max(text_width(FONT, line) for line in self.title)
        totals = max(text_width(FONT, total) for total in self.totals)
        return max(left + columns * width + max(80, totals + 12), title + 16), top + rows * height + 16

    def place(self, row: int, column: int) -> tuple[int, int]:
        """The upper left corner of a cell."""
        (left, top), (width, height) = self.corner, self.cell
        return left + column * width, top + row * height

    def named(self, count: int, pitch: int) -> range:
        """Which of so many rows or columns have their names written: every n-th, and one that is set apart."""
        step = -(-NAME_LINE // pitch)
        return range((count - 1) % step if self.apart else 0, count, step)

    def has_room(self, text: str) -> bool:
        """Whether a text can be read in a cell."""
        return self.cell[1] >= NAME_LINE and text_width(FONT, text) < self.cell[0] - 2


def draw(table: HeatMap) -> Image.Image:
    """The table as an image."""
    image = Image.new("RGB", table.size, "white")
    pen = ImageDraw.Draw(image)
    for number, line in enumerate(table.title):
        pen.text((8, 8 + number * TITLE_LINE), line, fill="black", font=FONT)
    draw_names(table, image, pen)
    width, height = table.cell
    for row, column in np.ndindex(*table.shades.shape):
        shade, text, (x, y) = float(table.shades[row, column]), table.texts[row][column], table.place(row, column)
        pen.rectangle((x, y, x + width - 2, y + height - 2), fill=blue(shade))
        if text and table.has_room(text):
            ink = "white" if shade > DARK else "black"
            pen.text((x + width / 2, y + height / 2), text, fill=ink, font=FONT, anchor="mm")
    if table.apart:
        rows, columns = table.shades.shape
        (left, top), (right, bottom) = table.place(0, 0), table.place(rows, columns)
        x, y = table.place(rows - 1, columns - 1)
        # In the gap that cells leave to the next one.
        pen.line((left, y - 1, right - 2, y - 1), fill="black")
        pen.line((x - 1, top, x - 1, bottom - 2), fill="black")
    return image


def draw_names(table: HeatMap, image: Image.Image, pen: ImageDraw.ImageDraw) -> None:
    """Names at the left, totals at the right, names of columns upright on top; every n-th where dense."""
    (width, height), (rows, columns) = table.cell, table.shades.shape
    for row in table.named(rows, height):
        (left, top), (right, _) = table.place(row, 0), table.place(row, columns)
        middle = top + height / 2
        pen.text((left - 6, middle), cut(table.rows[row], NAME_LENGTH), fill="black", font=FONT, anchor="rm")
        pen.text((right + 6, middle), table.totals[row], fill="gray", font=FONT, anchor="lm")
    for column in table.named(columns, width):
        name = upright(cut(table.columns[column], NAME_LENGTH), FONT)
        left, top = table.place(0, column)
        image.paste(name, (left + width // 2 - 8, top - 4 - name.height))
