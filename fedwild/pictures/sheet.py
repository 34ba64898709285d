"""Contact sheets: pictures in rows and columns with text around them, whatever they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fedwild.data import DataSettings
from fedwild.pictures.drawing import LINE, MARGIN, NAME_LENGTH, Font, Pixels, cut, fitted, text_width, write_png

NEAR_SIDE, LONGEST_SIDE = 60, 128  # of a picture on the sheet, in pixels
GAP, WIDE_GAP = 4, 14
HEADING = LINE + 10
CAPTION_LENGTH = 100


@dataclass(frozen=True)
class Sheet:
    """Pictures in rows and columns, and what is written around them."""

    caption: str
    """Lines on top."""
    pictures: Pixels
    """(rows, columns, height, width, 3), not yet enlarged."""
    row_names: Sequence[str]
    column_names: Sequence[str]
    """Above each column; all empty for none."""
    wide: Sequence[int]
    """The columns with a wider gap before them."""
    about: dict[str, Any]
    """The sheet in figures, for programs."""
    notes: Sequence[Sequence[str]] = ()
    """Small text under each picture, or nothing."""
    filled: Sequence[int] = ()
    """How many pictures of each row there are; nothing: all."""
    headings: Sequence[tuple[int, str]] = ()
    """Lines between rows, in order: the row that each comes before, and its text."""
    name_length: int = NAME_LENGTH
    """The most characters of a row's name."""

    def places(self) -> list[tuple[int, int]]:
        """Row and column of every picture that there is."""
        rows, columns = self.pictures.shape[:2]
        filled = self.filled or [columns] * rows
        return [(row, column) for row, count in enumerate(filled) for column in range(count)]


def pixels(x: Tensor, data: DataSettings) -> Pixels:
    """Inputs (n, C, H, W) or (n, C, D, H, W) as the data set has them, (n, H, W, 3); of volumes the middle slice."""
    x = x.detach().cpu() * level(data.std, 1.0, x) + level(data.mean, 0.0, x)
    if x.ndim == 5:
        x = x[:, :, x.shape[2] // 2]
    values = (x * 255).nan_to_num().round().clamp(0, 255).to(torch.uint8)
    return values.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()


def level(value: float | Sequence[float] | None, default: float, x: Tensor) -> Tensor:
    """One number, or one per channel, shaped to broadcast over a batch."""
    return torch.as_tensor(default if value is None else value).view(-1, *[1] * (x.ndim - 2))


def draw(sheet: Sheet) -> Image.Image:
    """The sheet as an image."""
    layout = Layout(sheet)
    image = Image.new("RGB", layout.size, "white")
    pen = ImageDraw.Draw(image)
    for number, line in enumerate(layout.lines):
        pen.text((MARGIN, MARGIN + number * LINE), line, fill="black", font=layout.font)
    width, height = layout.cell
    for row, column in sheet.places():
        left, top = layout.place(row, column)
        # The frame shows where a white picture ends.
        pen.rectangle((left - 1, top - 1, left + width, top + height), outline="silver")
        image.paste(fitted(sheet.pictures[row, column], layout.cell), (left, top))
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


def write(sheet: Sheet, path: Path) -> None:
    """Draw the sheet into a PNG file."""
    write_png(draw(sheet), path)


@dataclass(frozen=True)
class Layout:
    """Where everything is on a sheet."""

    sheet: Sheet
    font: Font = field(default_factory=lambda: ImageFont.load_default(size=12))

    @cached_property
    def lines(self) -> list[str]:
        """The caption's lines."""
        return self.sheet.caption.split("\n")

    @cached_property
    def cell(self) -> tuple[int, int]:
        """Width and height of a picture on the sheet."""
        return cell_size(*self.sheet.pictures.shape[2:4])

    @cached_property
    def pitch(self) -> tuple[int, int]:
        """From one picture to the next, across and down; as wide as the texts above and below need."""
        width, height = self.cell
        texts = [*self.sheet.column_names, *(text for row in self.sheet.notes for text in row)]
        return max([width, *map(self.width_of, texts)]) + GAP, height + GAP + (LINE if self.sheet.notes else 0)

    @cached_property
    def corner(self) -> tuple[int, int]:
        """Where the pictures begin."""
        names = max((self.width_of(self.row_name(name)) for name in self.sheet.row_names), default=0)
        lines = len(self.lines) + any(self.sheet.column_names)
        return MARGIN + names + 6, MARGIN + lines * LINE + 6

    @cached_property
    def size(self) -> tuple[int, int]:
        """Width and height of the whole."""
        rows, columns = self.sheet.pictures.shape[:2]
        last, (_, end) = self.place(0, columns - 1)[0], self.place(rows, 0)
        texts = [*self.lines, *(text for _, text in self.sheet.headings)]
        right = max(last + (self.cell[0] + self.pitch[0]) // 2, MARGIN + max(map(self.width_of, texts)))
        return right + MARGIN, end - GAP + MARGIN

    def place(self, row: int, column: int) -> tuple[int, int]:
        """The upper left corner of a picture."""
        (left, top), (across, down) = self.corner, self.pitch
        gaps = sum(start <= column for start in self.sheet.wide)
        headings = sum(before <= row for before, _ in self.sheet.headings)
        return left + column * across + gaps * WIDE_GAP, top + row * down + headings * HEADING

    def heading(self, number: int) -> int:
        """Where the text of a heading begins, from the top."""
        before, _ = self.sheet.headings[number]
        return self.corner[1] + before * self.pitch[1] + number * HEADING + HEADING - LINE - GAP

    def row_name(self, name: str) -> str:
        return cut(name, self.sheet.name_length)

    def width_of(self, text: str) -> int:
        return text_width(self.font, text)


def cell_size(height: int, width: int) -> tuple[int, int]:
    """Width and height on the sheet: small images enlarged by a whole factor, large ones made smaller."""
    longest = max(height, width)
    if longest > LONGEST_SIDE:
        return max(1, width * LONGEST_SIDE // longest), max(1, height * LONGEST_SIDE // longest)
    factor = max(1, round(NEAR_SIDE / longest))
    return width * factor, height * factor
