"""Writing pictures: PNG, SVG or PDF by the ending of the file's name, whole or not at all, the same bytes each time."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwild.core.errors import UserError
from fedwild.core.payload import write_atomically
from fedwild.results.pictures.style import SHEET_DPI, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

# Files must not hold the time at which they were written.
METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


def check_ending(path: Path) -> str:
    """Return the format that the ending of a file's name stands for. Raises `UserError` if it stands for none."""
    ending = path.suffix.lower().removeprefix(".")
    if ending not in METADATA:
        raise UserError(f"--out {str(path)!r} is not allowed: the file's name must end in .png, .svg or .pdf.")
    return ending


def check_drawable(path: Path) -> None:
    """Raise `UserError` if a figure cannot be drawn into this file, before hours are spent on what it shows."""
    check_ending(path)
    with styled():
        pass


def write_figure(figure: Figure, path: Path, tight: bool = True) -> None:
    """Write a figure. `tight` makes the page as large as everything that is drawn."""
    kind, buffer = check_ending(path), io.BytesIO()
    page: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.12} if tight else {}
    with styled(), warnings.catch_warnings():
        # Characters that the font does not have become boxes.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure.savefig(buffer, format=kind, dpi="figure", metadata=METADATA[kind], **page)
    write_picture(buffer.getvalue(), path)


def write_image(image: Image, path: Path) -> None:
    """Write an image. An SVG or a PDF has it pixel for pixel."""
    if check_ending(path) == "png":
        buffer = io.BytesIO()
        image.save(buffer, format="PNG")
        return write_picture(buffer.getvalue(), path)
    with styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(image.width / SHEET_DPI, image.height / SHEET_DPI), dpi=SHEET_DPI)
        figure.figimage(np.asarray(image))
    return write_figure(figure, path, tight=False)


def write_picture(data: bytes, path: Path) -> None:
    """Write the bytes of a picture, whole or not at all."""
    try:
        if path.exists() and not path.is_file():
            # A folder refuses; a device or a pipe must not be replaced by a file.
            path.write_bytes(data)
        else:
            write_atomically(Path(os.path.realpath(path)), data, durable=False)
    except OSError as error:
        raise UserError(f"--out {str(path)!r} cannot be written: {error.strerror or error}.") from None
