"""Contact sheets, drawn with Pillow: images in rows and columns with text around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fedwild.core.text import cut
from fedwild.data import DataSettings
from fedwild.results.pictures.drawing import write_image

Pixels = NDArray[np.uint8]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

# In pixels.
MARGIN, LINE = 10, 16
USUAL_SIDE, MAX_SIDE = 60, 128  # of an image
GAP, WIDE_GAP = 4, 14
HEADING = LINE + 10
# In characters.
MAX_CAPTION, MAX_NAME = 100, 14


@dataclass(frozen=True)
class Sheet:
    """Images in rows and columns, and the text around them."""

    caption: str
    """Lines at the top."""
    pictures: Pixels
    """(rows, columns, height, width, 3), in their stored size."""
    row_names: Sequence[str]
    column_names: Sequence[str] = ()
    """Above each column."""
    wide: Sequence[int] = ()
    """The columns with a wider gap before them."""
    about: dict[str, Any] = field(default_factory=dict)
    """What the sheet shows as plain values, for JSON."""
    notes: Sequence[Sequence[str]] = ()
    """Small text under each image."""
    filled: Sequence[int] = ()
    """The number of images in each row; empty if all rows are full."""
    headings: Sequence[tuple[int, str]] = ()
    """Lines between rows, in order: the row that each precedes, and its text."""
    max_name: int = MAX_NAME
    """The maximum length of a row's name."""

    def places(self) -> list[tuple[int, int]]:
        """Return row and column of every image."""
        rows, columns = self.pictures.shape[:2]
        filled = self.filled or [columns] * rows
        return [(row, column) for row, number in enumerate(filled) for column in range(number)]


def pixels(x: Tensor, data: DataSettings) -> Pixels:
    """Return inputs (n, C, H, W) or (n, C, D, H, W) as images (n, H, W, 3), as the data set stores them.

    A volume becomes its middle slice.
    """
    x = x.detach().cpu() * per_channel(data.std, 1.0, x) + per_channel(data.mean, 0.0, x)
    if x.ndim == 5:
        x = x[:, :, x.shape[2] // 2]
    values = (x * 255).nan_to_num().round().clamp(0, 255).to(torch.uint8)
    return values.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()


def per_channel(value: float | Sequence[float] | None, default: float, x: Tensor) -> Tensor:
    """Return one number, or one per channel, in a shape that broadcasts over a batch."""
    return torch.as_tensor(default if value is None else value).view(-1, *[1] * (x.ndim - 2))


def fill_rows(rows: Sequence[Pixels], size: tuple[int, int]) -> Pixels:
    """Return rows of images (n, H, W, 3) as one array (rows, columns, H, W, 3); short rows end in white."""
    columns = max((len(row) for row in rows), default=1)
    pictures = np.full((len(rows), columns, *size, 3), 255, dtype=np.uint8)
    for number, row in enumerate(rows):
        pictures[number, : len(row)] = row
    return pictures


def write(sheet: Sheet, path: Path) -> None:
    """Draw the sheet into a PNG, SVG or PDF file."""
    write_image(draw(sheet), path)


def draw(sheet: Sheet) -> Image.Image:
    """Return the sheet as an image."""
    layout = Layout(sheet)
    image = Image.new("RGB", layout.size, "white")
    pen = ImageDraw.Draw(image)
    for number, line in enumerate(sheet.caption.split("\n")):
        pen.text((MARGIN, MARGIN + number * LINE), line, fill="black", font=layout.font)
    width, height = layout.cell
    for row, column in sheet.places():
        left, top = layout.place(row, column)
        # The frame shows where a white image ends.
        pen.rectangle((left - 1, top - 1, left + width, top + height), outline="silver")
        picture = Image.fromarray(np.ascontiguousarray(sheet.pictures[row, column]))
        # Enlarged without smoothing.
        how = Image.Resampling.NEAREST if width >= picture.width else Image.Resampling.BOX
        image.paste(picture.resize(layout.cell, how), (left, top))
        if sheet.notes:
            where = (left + width / 2, top + height + LINE / 2)
            pen.text(where, sheet.notes[row][column], fill="dimgray", font=layout.font, anchor="mm")
    for row, name in enumerate(sheet.row_names):
        left, top = layout.place(row, 0)
        pen.text((left - 6, top + height / 2), layout.row_name(name), fill="black", font=layout.font, anchor="rm")
    for column, name in enumerate(sheet.column_names):
        middle = layout.place(0, column)[0] + width / 2
        pen.text((middle, layout.corner[1] - LINE / 2 - 1), name, fill="black", font=layout.font, anchor="mm")
    for number, (_, text) in enumerate(sheet.headings):
        pen.text((MARGIN, layout.heading(number)), text, fill="black", font=layout.font)
    return image


@dataclass(frozen=True)
class Layout:
    """Where everything is on a sheet, in pixels."""

    sheet: Sheet
    font: Font = field(default_factory=lambda: ImageFont.load_default(size=12))

    @cached_property
    def cell(self) -> tuple[int, int]:
        """Width and height of an image on the sheet."""
        return cell_size(*self.sheet.pictures.shape[2:4])

    @cached_property
    def pitch(self) -> tuple[int, int]:
        """The distance from one image to the next, across and down; the texts above and below fit into it."""
        width, height = self.cell
        texts = [*self.sheet.column_names, *(text for row in self.sheet.notes for text in row)]
        return max([width, *map(self.width_of, texts)]) + GAP, height + GAP + (LINE if self.sheet.notes else 0)

    @cached_property
    def corner(self) -> tuple[int, int]:
        """The upper left corner of the first image."""
        names = max((self.width_of(self.row_name(name)) for name in self.sheet.row_names), default=0)
        lines = 1 + self.sheet.caption.count("\n") + any(self.sheet.column_names)
        return MARGIN + names + 6, MARGIN + lines * LINE + 6

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height of the sheet."""
        rows, columns = self.sheet.pictures.shape[:2]
        last, (_, end) = self.place(0, columns - 1)[0], self.place(rows, 0)
        texts = [*self.sheet.caption.split("\n"), *(text for _, text in self.sheet.headings)]
        right = max(last + (self.cell[0] + self.pitch[0]) // 2, MARGIN + max(map(self.width_of, texts)))
        return right + MARGIN, end - GAP + MARGIN

    def place(self, row: int, column: int) -> tuple[int, int]:
        """Return the upper left corner of an image."""
        (left, top), (across, down) = self.corner, self.pitch
        gaps = sum(start <= column for start in self.sheet.wide)
        headings = sum(before <= row for before, _ in self.sheet.headings)
        return left + column * across + gaps * WIDE_GAP, top + row * down + headings * HEADING

    def heading(self, number: int) -> int:
        """Return the top of a heading's text."""
        before, _ = self.sheet.headings[number]
        return self.corner[1] + before * self.pitch[1] + number * HEADING + HEADING - LINE - GAP

    def row_name(self, name: str) -> str:
        return cut(name, self.sheet.max_name)

    def width_of(self, text: str) -> int:
        return int(self.font.getlength(text)) + 1


def cell_size(height: int, width: int) -> tuple[int, int]:
    """Return width and height on the sheet: small images are enlarged by a whole factor, large ones reduced."""
    longest = max(height, width)
    if longest > MAX_SIDE:
        return max(1, width * MAX_SIDE // longest), max(1, height * MAX_SIDE // longest)
    factor = max(1, round(USUAL_SIDE / longest))
    return width * factor, height * factor
