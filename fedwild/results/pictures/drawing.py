"""What pictures share: sizes, text, colours, and the writing of PNG files."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedwild.core.errors import UserError
from fedwild.core.payload import write_atomically

Pixels = NDArray[np.uint8]
Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

MARGIN, LINE = 10, 16
NAME_LENGTH = 14


def cut(text: str, length: int = NAME_LENGTH) -> str:
    """Text of at most so many characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def text_width(font: Font, text: str) -> int:
    return int(font.getlength(text)) + 1


def upright(text: str, font: Font) -> Image.Image:
    """Text that reads from bottom to top."""
    label = Image.new("RGB", (text_width(font, text) + 2, LINE), "white")
    ImageDraw.Draw(label).text((0, LINE // 2), text, fill="black", font=font, anchor="lm")
    return label.rotate(90, expand=True)


def blue(shade: float) -> tuple[int, int, int]:
    """From near white at 0 to dark blue at 1."""
    low, high = np.array([244, 246, 250]), np.array([16, 66, 140])
    red, green, blue = (int(value) for value in low + (high - low) * shade)
    return red, green, blue


def fitted(picture: Pixels, cell: tuple[int, int]) -> Image.Image:
    """A picture (H, W, 3) in the size of a cell; enlarged without smoothing."""
    image = Image.fromarray(np.ascontiguousarray(picture))
    larger = cell[0] >= image.width
    return image.resize(cell, Image.Resampling.NEAREST if larger else Image.Resampling.BOX)


def write_png(image: Image.Image, path: Path) -> None:
    """Write a PNG file, whole or not at all."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    try:
        if path.exists() and not path.is_file():
            # A folder refuses; a device or a pipe must not be replaced by a file.
            path.write_bytes(buffer.getvalue())
        else:
            write_atomically(Path(os.path.realpath(path)), buffer.getvalue(), durable=False)
    except OSError as error:
        raise UserError(f"--png {str(path)!r} cannot be written: {error.strerror or error}.") from None
