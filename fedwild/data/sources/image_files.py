"""Reading many image files into one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from fedwild.core.errors import UserError

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".gif", ".webp", ".ppm", ".pgm"})
_GREY_MODES = frozenset({"1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"})


def read_images(files: Sequence[Path], size: int | None, channels: int | None) -> Tensor:
    """Return all files as uint8 (n, C, H, W), resized to `size` if given; in colour if any has colour, by default."""
    shapes = [_header(file) for file in files]
    if channels is None:
        channels = 3 if any(colour for _, colour in shapes) else 1
    width, height = (size, size) if size else shapes[0][0]
    for file, (found, _) in zip(files, shapes, strict=True):
        if size is None and found != (width, height):
            raise UserError(
                f"{file} has {found[0]}x{found[1]} pixels but {files[0]} has {width}x{height}: set data.size to "
                "resize all images."
            )
    out = np.empty((len(files), channels, height, width), dtype=np.uint8)
    for number, file in enumerate(files):
        out[number] = _pixels(file, (width, height), channels)
    return torch.from_numpy(out)


def _header(file: Path) -> tuple[tuple[int, int], bool]:
    """Return (width, height) and whether the image has colour, without decoding it."""
    try:
        with Image.open(file) as image:
            return image.size, image.mode not in _GREY_MODES
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise _unreadable(file) from None


def _pixels(file: Path, size: tuple[int, int], channels: int) -> np.ndarray:
    """Return one image as uint8 (C, H, W)."""
    try:
        with Image.open(file) as opened:
            image = _eight_bit(opened).convert("L" if channels == 1 else "RGB")
            if image.size != size:
                image = image.resize(size, Image.Resampling.BILINEAR)
            pixels = np.asarray(image, dtype=np.uint8)
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError):
        raise _unreadable(file) from None
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _eight_bit(image: Image.Image) -> Image.Image:
    """Return a 16-bit grey image without its low byte; Pillow's conversion would clip it to white."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))


def _unreadable(file: Path) -> UserError:
    return UserError(f"{file} cannot be read as an image: repair or delete it.")
