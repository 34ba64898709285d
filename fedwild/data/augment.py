"""Random crops and flips of a whole batch in one gather."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

PAD, PAD_SIDE = 4, 32
"""A crop moves an image by up to 4 of 32 pixels; larger images in proportion."""


def padding(x: Tensor) -> int:
    """Return by how many pixels a crop moves images (..., H, W)."""
    return max(PAD, round(PAD * min(x.shape[-2:]) / PAD_SIDE))


def augment_batch(x: Tensor, kinds: Collection[str], generator: torch.Generator) -> Tensor:
    """Return x, (b, C, H, W) or (b, C, D, H, W), shifted by up to `padding` with reflection and flipped at random."""
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
    return planes.gather(2, pixels.expand_as(planes)).view_as(x)


def reflect(position: Tensor, size: int) -> Tensor:
    """Return positions with those outside 0..size-1 mirrored at the edge pixel, which is not repeated."""
    position = position.abs()
    return (size - 1) - ((size - 1) - position).abs()
