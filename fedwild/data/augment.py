"""Random crops, flips and rotations of a whole batch, each by one gather."""

from __future__ import annotations

import math
from collections.abc import Collection

import torch
from torch import Tensor

PAD, PAD_SIDE = 4, 32
"""A crop moves an image by up to 4 of 32 pixels; larger images in proportion."""
MAX_DEGREES = 15.0
"""A rotation turns an image by up to this angle, either way."""


def padding(x: Tensor) -> int:
    """Return by how many pixels a crop moves images (..., H, W)."""
    return max(PAD, round(PAD * min(x.shape[-2:]) / PAD_SIDE))


def augment_batch(x: Tensor, kinds: Collection[str], generator: torch.Generator) -> Tensor:
    """Return x, (b, C, H, W) or (b, C, D, H, W), shifted by up to `padding` with reflection, flipped and rotated."""
    batch, height, width = len(x), x.shape[-2], x.shape[-1]
    rows = torch.arange(height).expand(batch, height)
    columns = torch.arange(width).expand(batch, width)
    if "crop" in kinds:
        pad = padding(x)
        shift = torch.randint(-pad, pad + 1, (2, batch, 1), generator=generator)
        rows = reflect(rows + shift[0], height)
        columns = reflect(columns + shift[1], width)
    if "flip" in kinds:
        coin = torch.randint(0, 2, (batch, 1), generator=generator).bool()
        columns = torch.where(coin, columns.flip(1), columns)
    pixels = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).view(batch, 1, height * width)
    planes = x.reshape(batch, -1, height * width)
    moved = planes.gather(2, pixels.expand_as(planes)).view_as(x)
    if "rotate" not in kinds:
        return moved
    angles = (2 * torch.rand(batch, generator=generator, dtype=torch.float64) - 1) * math.radians(MAX_DEGREES)
    return rotate(moved, angles)


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Return x, (b, ..., H, W), rotated counter-clockwise about the centre by angles (b,) in radians.

    Each pixel takes the value of the nearest pixel of the original; pixels from outside of it are 0.
    """
    batch, height, width = len(x), x.shape[-2], x.shape[-1]
    down = (torch.arange(height) - (height - 1) / 2).view(1, -1, 1).double()
    right = (torch.arange(width) - (width - 1) / 2).view(1, 1, -1).double()
    cos, sin = angles.cos().view(-1, 1, 1), angles.sin().view(-1, 1, 1)
    rows = (cos * down + sin * right + (height - 1) / 2).round().long()
    columns = (cos * right - sin * down + (width - 1) / 2).round().long()
    is_inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    pixels = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).view(batch, 1, height * width)
    planes = x.reshape(batch, -1, height * width)
    return (planes.gather(2, pixels.expand_as(planes)) * is_inside.view(batch, 1, -1)).view_as(x)


def reflect(position: Tensor, size: int) -> Tensor:
    """Return positions with those outside 0..size-1 mirrored at the edge pixel, which is not repeated."""
    position = position.abs()
    return (size - 1) - ((size - 1) - position).abs()
