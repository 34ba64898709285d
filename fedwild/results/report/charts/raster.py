"""Pictures inside the page: PNG files as text, kept small."""

from __future__ import annotations

import base64
import io
import math

import numpy as np
from PIL import Image

from fedwild.results.report.charts.scale import Real
from fedwild.results.report.markup import Html, tag

LARGE, LARGEST = 120_000, 400_000
"""Bytes: larger pictures get fewer colours; those that are then still too large get smaller."""
BLUE = (0, 114, 178)


def picture(image: Image.Image, about: str, class_: str = "picture") -> Html:
    """A picture of any size, made small enough for the page."""
    data = png(image)
    if len(data) > LARGE:
        data = png(few_colours(image))
    while len(data) > LARGEST:
        # Noise needs as many bytes as it has pixels, so that one step is mostly enough.
        scale = 0.95 * math.sqrt(LARGEST / len(data))
        image = image.resize((max(1, int(image.width * scale)), max(1, int(image.height * scale))))
        data = png(few_colours(image))
    return tag("img", src=uri(data), alt=about, width=image.width, height=image.height, class_=class_)


def few_colours(image: Image.Image) -> Image.Image:
    return image.convert("RGB").quantize(64, Image.Quantize.FASTOCTREE)


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def shades_uri(shades: Real) -> str:
    """Shades (rows, columns) from 0 to 1, a pixel each: blue, and the clearer the smaller, as on any background."""
    alpha = (shades.clip(0, 1) * 255).round().astype(np.uint8)
    pixels = np.dstack([*(np.full_like(alpha, level) for level in BLUE), alpha])
    return uri(png(Image.fromarray(pixels)))
