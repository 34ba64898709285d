"""Rows of small images with text under each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from fedwild.core.errors import UserError
from fedwild.results.pictures.sheet import Pixels
from fedwild.results.report.charts.raster import data_uri, png
from fedwild.results.report.markup import Html, tag

MAX_SIDE = 64
"""The longest side of an image in the page, in pixels."""


@dataclass(frozen=True)
class Thumb:
    """An image (H, W, 3), the text under it, and its tooltip."""

    picture: Pixels
    text: str
    note: str
    about: str


def thumbs(images: Sequence[Thumb]) -> Html:
    """Return the images side by side, as many as fit."""
    return tag("div", *map(cell, images), class_="sheet")


def labelled(label: str, content: Html) -> Html:
    """Return a row of images with a label to its left."""
    return tag("div", tag("h4", label), content, class_="labelled")


def cell(thumb: Thumb) -> Html:
    source = data_uri(png(reduced(thumb.picture)))
    image = tag("img", src=source, alt=thumb.about, title=thumb.about, class_="thumb")
    return tag("div", image, tag("span", thumb.text), tag("small", thumb.note) if thumb.note else None)


def reduced(picture: Pixels) -> Image.Image:
    """Return an image (H, W, 3) of at most MAX_SIDE pixels, in grey if it has no colours."""
    image = Image.fromarray(np.ascontiguousarray(picture))
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.BOX)
    grey = image.convert("L")
    return grey if np.array_equal(np.asarray(grey.convert("RGB")), np.asarray(image)) else image


def check_images(shape: tuple[int, ...]) -> None:
    """Raise `UserError` for samples that are not images."""
    if len(shape) not in (3, 4) or shape[0] not in (1, 3):
        raise UserError(f"samples of shape {shape} are not images, so they are not shown.")
