"""Rendered digits: colour images of digits in many fonts, drawn on demand. They stand in for SynthDigits.

The fonts are those that matplotlib contains: no fonts of the system are needed.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedwild.core.errors import UserError

TRAIN, TEST, SIDE = 10_000, 2_000, 32
_SEED = 78
_FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-Bold"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic"),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)
_BLANK = 10
_BOX = (34, 26)
"""Height and width in which a digit is drawn, _DIGIT pixels high, before it is transformed."""
_DIGIT = 24
_PATCHES = 5
"""The texture of a background has this many random patches per side."""
_CHUNK = 500  # images drawn at a time
_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def why_no_fonts() -> str | None:
    """Return why digits cannot be rendered on this machine; None if they can."""
    folder = _font_folder()
    if folder is None:
        return "its fonts are those of matplotlib, which is not installed (pip install 'fedwild[plots]')"
    missing = [name for name in _FONTS if not (folder / f"{name}.ttf").is_file()]
    return f"matplotlib's font {missing[0]}.ttf is missing in {folder}" if missing else None


def render_digits(train: int = TRAIN, test: int = TEST) -> dict[str, np.ndarray]:
    """Return the arrays of a prepared file: images (n, 32, 32, 3) uint8 and labels, all classes equally frequent."""
    if reason := why_no_fonts():
        raise UserError(f"data set 'rendered-digits' cannot be drawn: {reason}.")
    glyphs = _draw_glyphs()
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("train", train), ("test", test)):
        rng = np.random.default_rng([_SEED, len(part), count])
        labels = rng.permutation(np.arange(count) % 10)
        pieces = [_draw(labels[start : start + _CHUNK], glyphs, rng) for start in range(0, count, _CHUNK)]
        arrays |= {f"x_{part}": np.concatenate(pieces), f"y_{part}": labels.astype(np.uint8)}
    return arrays


def _font_folder() -> Path | None:
    # The files are found without importing matplotlib, which is slow.
    package = find_spec("matplotlib")
    if package is None or not package.submodule_search_locations:
        return None
    return Path(package.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"


def _draw_glyphs() -> np.ndarray:
    """Return the ink of each digit in each font and of a blank, in [0, 1]: (fonts, 11, height, width) float32."""
    folder = _font_folder()
    assert folder is not None
    height, width = _BOX
    glyphs = np.zeros((len(_FONTS), _BLANK + 1, height, width), dtype=np.float32)
    for row, name in zip(glyphs, _FONTS, strict=True):
        font = _font_of_height(folder / f"{name}.ttf")
        for digit in range(10):
            image = Image.new("L", (width, height))
            ImageDraw.Draw(image).text((width / 2, height / 2), str(digit), fill=255, font=font, anchor="mm")
            left, top, right, bottom = image.getbbox() or (0, 0, width, height)
            # Fonts differ in where they place a digit: centre it.
            shift = ((width - left - right) // 2, (height - top - bottom) // 2)
            row[digit] = np.roll(np.asarray(image, dtype=np.float32) / 255, shift[::-1], axis=(0, 1))
    return glyphs


def _font_of_height(file: Path) -> ImageFont.FreeTypeFont:
    """Return the font in the size in which a zero is _DIGIT pixels high."""
    large = 200
    _, top, _, bottom = ImageFont.truetype(file, large, layout_engine=ImageFont.Layout.BASIC).getbbox("0")
    return ImageFont.truetype(file, large * _DIGIT / (bottom - top), layout_engine=ImageFont.Layout.BASIC)


def _draw(labels: np.ndarray, glyphs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return an image (32, 32, 3) uint8 of each label."""
    ink = _blur(_ink(labels, glyphs, rng), rng)[..., None]
    ground, colour = _colours(len(labels), rng)
    image = (1 - ink) * (ground[:, None, None] + _texture(len(labels), rng)) + ink * colour[:, None, None]
    noise = rng.standard_normal(image.shape, dtype=np.float32)
    image += rng.uniform(0, 0.08, (len(labels), 1, 1, 1)).astype(np.float32) * noise
    return np.clip(np.round(image * 255), 0, 255).astype(np.uint8)


def _ink(labels: np.ndarray, glyphs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the ink (n, 32, 32): each label in a random font, size, place and slant, often between other digits."""
    count, (height, width) = len(labels), _BOX
    font = rng.integers(len(glyphs), size=count)
    neighbours = np.where(rng.random((count, 2)) < 0.5, rng.integers(10, size=(count, 2)), _BLANK)
    line = np.stack([neighbours[:, 0], labels, neighbours[:, 1]], 1)
    angle, slant, shift_y, shift_x, scale, wide = (
        rng.uniform(low, high, (count, 1, 1)).astype(np.float32)
        for low, high in ((-0.35, 0.35), (-0.25, 0.25), (-3, 3), (-3, 3), (0.7, 1.1), (0.8, 1.15))
    )
    # From a pixel of the image back to a point of the line of text.
    down, right = np.mgrid[:SIDE, :SIDE].astype(np.float32) - (SIDE - 1) / 2
    down, right = down - shift_y, right - shift_x
    y = (np.cos(angle) * down - np.sin(angle) * right) / scale
    x = (np.sin(angle) * down + np.cos(angle) * right) / (scale * wide) + slant * y
    place = np.clip(np.round(x / width), -1, 1)
    digit = np.take_along_axis(line, place.reshape(count, -1).astype(np.int64) + 1, 1).reshape(place.shape)
    return _sample(glyphs, font[:, None, None], digit, y + (height - 1) / 2, x - place * width + (width - 1) / 2)


def _sample(glyphs: np.ndarray, font: np.ndarray, digit: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the glyphs' ink at points (y, x) by bilinear interpolation; there is none outside of the box."""
    height, width = _BOX
    # The outermost pixels of a box are empty, so that points outside of it find no ink.
    y, x = np.clip(y, 0, height - 1.001), np.clip(x, 0, width - 1.001)
    top, left = y.astype(np.int64), x.astype(np.int64)
    below, right = y - top.astype(np.float32), x - left.astype(np.float32)
    first = ((font * glyphs.shape[1] + digit) * height + top) * width + left
    ink = glyphs.reshape(-1)
    upper = (1 - right) * ink.take(first) + right * ink.take(first + 1)
    lower = (1 - right) * ink.take(first + width) + right * ink.take(first + width + 1)
    return (1 - below) * upper + below * lower


def _blur(ink: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the ink after a blur of random strength along both axes."""
    share = rng.uniform(0, 0.25, (len(ink), 1, 1)).astype(np.float32)
    before, after = (np.clip(np.arange(SIDE) + step, 0, SIDE - 1) for step in (-1, 1))
    for axis in (1, 2):
        ink = (1 - 2 * share) * ink + share * (ink.take(before, axis) + ink.take(after, axis))
    return ink


def _colours(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return colours (n, 3) of background and ink: of four random inks, the one that differs most in brightness."""
    ground, inks = rng.random((count, 3), dtype=np.float32), rng.random((count, 4, 3), dtype=np.float32)
    best = np.abs(inks @ _LUMA - (ground @ _LUMA)[:, None]).argmax(1)
    return ground, inks[np.arange(count), best]


def _texture(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return what is added to a background (n, 32, 32, 3): smooth random patches of random strength."""
    patches = rng.standard_normal((count, _PATCHES, _PATCHES, 3), dtype=np.float32)
    patches *= rng.uniform(0, 0.2, (count, 1, 1, 1)).astype(np.float32)
    points = np.linspace(0, _PATCHES - 1, SIDE)[:, None]
    weights = np.clip(1 - np.abs(points - np.arange(_PATCHES)), 0, 1).astype(np.float32)
    along_rows = np.einsum("hp,npqc->nhqc", weights, patches)
    return np.einsum("wq,nhqc->nhwc", weights, along_rows)
