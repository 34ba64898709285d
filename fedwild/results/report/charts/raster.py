"""Images inside the page: PNG files as data URIs, kept small, and rows of small images with text under each."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from fedwild.core.errors import UserError
from fedwild.results.pictures.sheet import Pixels
from fedwild.results.report.charts.scale import Real
from fedwild.results.report.markup import Html, tag

LARGE, MAX_BYTES = 120_000, 400_000
"""Images above LARGE bytes get fewer colours; images above MAX_BYTES are then reduced in size."""
MAX_PIXELS = 100_000
"""The maximum number of pixels of a heat map."""
BLUE = (0, 114, 178)
MAX_SIDE = 64
"""The longest side of an image in the page, in pixels."""


def embed_image(image: Image.Image, about: str) -> Html:
    """Return an image of any size, made small enough for the page."""
    data = png(image)
    if len(data) > LARGE:
        data = png(few_colours(image))
    while len(data) > MAX_BYTES:
        # The size of a noisy image is proportional to its pixels, so one step is usually enough.
        scale = 0.95 * math.sqrt(MAX_BYTES / len(data))
        image = image.resize((max(1, int(image.width * scale)), max(1, int(image.height * scale))))
        data = png(few_colours(image))
    return tag("img", src=data_uri(data), alt=about, width=image.width, height=image.height, class_="picture")


def few_colours(image: Image.Image) -> Image.Image:
    return image.convert("RGB").quantize(64, Image.Quantize.FASTOCTREE)


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def data_uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def shades_uri(shades: Real) -> str:
    """Return shades (rows, columns) from 0 to 1 as an image, blue with the shade as opacity, a pixel per cell.

    Neighbouring cells are averaged above MAX_PIXELS.
    """
    alpha = Image.fromarray((shades.clip(0, 1) * 255).round().astype(np.uint8))
    if shades.size > MAX_PIXELS:
        scale = math.sqrt(MAX_PIXELS / shades.size)
        alpha = alpha.resize(
            (max(1, int(alpha.width * scale)), max(1, int(alpha.height * scale))), Image.Resampling.BOX
        )
    image = Image.new("RGB", alpha.size, BLUE)
    image.putalpha(alpha)
    return data_uri(png(image))


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
