"""Images inside the page: PNG files as data URIs, kept small."""

from __future__ import annotations

import base64
import io
import math

import numpy as np
from PIL import Image

from fedwild.results.report.charts.scale import Real
from fedwild.results.report.markup import Html, tag

LARGE, MAX_BYTES = 120_000, 400_000
"""Images above LARGE bytes get fewer colours; images above MAX_BYTES are then reduced in size."""
MAX_PIXELS = 100_000
"""The maximum number of pixels of a heat map."""
BLUE = (0, 114, 178)


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
