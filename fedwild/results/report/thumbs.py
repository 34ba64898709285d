"""Rows of small pictures with a few words under each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from fedwild.core.errors import UserError
from fedwild.results.pictures.sheet import Pixels
from fedwild.results.report.charts.raster import png, uri
from fedwild.results.report.markup import Html, tag

SIDE = 64
"""The longest side of a picture in the page, in pixels."""


@dataclass(frozen=True)
class Thumb:
    """A picture (H, W, 3), what is under it, and what it says when pointed at."""

    picture: Pixels
    words: str
    figure: str
    about: str


def thumbs(rows: Sequence[Thumb]) -> Html:
    """The pictures side by side, as many as there is room for."""
    return tag("div", *map(cell, rows), class_="sheet")


def cell(thumb: Thumb) -> Html:
    source = uri(png(reduced(thumb.picture)))
    image = tag("img", src=source, alt=thumb.about, title=thumb.about, class_="thumb")
    return tag("div", image, tag("span", thumb.words), tag("small", thumb.figure))


def reduced(picture: Pixels) -> Image.Image:
    """A picture (H, W, 3) that is small enough, grey if it is; the page enlarges small ones."""
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    grey = image.convert("L")
    return grey if np.array_equal(np.asarray(grey.convert("RGB")), np.asarray(image)) else image


def check_pictures(shape: tuple[int, ...]) -> None:
    """Refuse samples that are no pictures."""
    if len(shape) not in (3, 4) or shape[0] not in (1, 3):
        raise UserError(f"samples of shape {shape} are no pictures, so they are not shown.")
