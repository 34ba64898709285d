"""CutPaste (Li et al., CVPR 2021) as an outlier generator, with which FedOV is compared (Appendix B.7).

A patch of an image x (n, C, H, W) is jittered in colour and pasted elsewhere in the same image. The jitter scales
brightness, contrast and, with 3 channels, saturation by factors in [0.9, 1.1]; hue does not change. Jittered pixels
stay in the value range of their image, so that an outlier differs by the position of its pixels, not by impossible
values.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedwild.openset.destruction import (
    Choice,
    Mask,
    Real,
    Whole,
    below,
    between,
    fitting_box,
    log_between,
    positions,
    take,
    uniforms,
    within,
)

PATCH_AREA, PATCH_ASPECT = (0.02, 0.15), (0.3, 3.3)
SCAR_WIDTH, SCAR_LENGTH = (2, 16), (10, 25)
SCAR_SIDE = 256
SCAR_ANGLE = math.radians(45)
JITTER = (0.9, 1.1)
LUMA = (0.299, 0.587, 0.114)  # grey of red, green and blue (ITU-R BT.601)


def normal(x: Tensor, generator: torch.Generator) -> Tensor:
    """Paste a box of 2-15 % of the image at another place."""
    height, width = x.shape[-2:]
    area, aspect, source, target, *factors = uniforms(7, len(x), generator)
    h, w = fitting_box(between(area, *PATCH_AREA), log_between(aspect, *PATCH_ASPECT), height, width)
    across = width - w + 1
    places = (height - h + 1) * across
    old = below(source, places)
    new = (old + 1 + below(target, places - 1)) % places  # uniform over all places except the old one
    top, left = new // across, new % across
    shift = (old // across - top) * width + old % across - left
    mask = within(top, h, height)[:, :, None] & within(left, w, width)[:, None, :]
    return _paste(x, positions(height, width) + mask * shift[:, None, None], mask, factors)


def scar(x: Tensor, generator: torch.Generator) -> Tensor:
    """Paste a strip of 2-16 x 10-25 pixels, rotated by up to 45 degrees in either direction, at a random place.

    The lengths were chosen for images of 256 pixels, but FedOV uses them unchanged on small ones. On larger images they
    grow in proportion. Both are at most half of the shorter side, so that the rotated strip fits into the image.
    """
    height, width = x.shape[-2:]
    across, along, top, left, angle, down, right, *factors = uniforms(10, len(x), generator)
    longest, scale = max(min(height, width) // 2, 1), max(1.0, min(height, width) / SCAR_SIDE)
    sizes = (np.rint(_whole(u, *range_) * scale) for u, range_ in ((across, SCAR_WIDTH), (along, SCAR_LENGTH)))
    w, h = (np.minimum(size.astype(np.int64), longest) for size in sizes)
    row, column = strip_coordinates(between(angle, -SCAR_ANGLE, SCAR_ANGLE), h, w, down, right, height, width)
    mask = (row >= 0) & (row < h[:, None, None]) & (column >= 0) & (column < w[:, None, None])
    start = below(top, height - h + 1) * width + below(left, width - w + 1)
    pixels = np.where(mask, row * width + column + start[:, None, None], positions(height, width))
    return _paste(x, pixels, mask, factors)


# Either kind, at random per image, as in FedOV's comparison.
union = Choice([normal, scar], [1, 1])


def strip_coordinates(
    angle: Real, h: Whole, w: Whole, down: Real, right: Real, height: int, width: int
) -> tuple[Whole, Whole]:
    """Return, for each pixel, the nearest row and column (n, H, W) of the upright strip (h, w) pasted there.

    The uniform draws `down` and `right` place the bounding box of the rotated strip in the image. Pixels with a row
    outside 0..h-1 or a column outside 0..w-1 are not covered by the strip.
    """
    cos, sin = np.cos(angle), np.sin(angle)
    tall = np.ceil(h * cos + w * np.abs(sin)).astype(np.int64)
    wide = np.ceil(w * cos + h * np.abs(sin)).astype(np.int64)
    y = np.arange(height) - (below(down, height - tall + 1) + (tall - 1) / 2)[:, None]
    x = np.arange(width) - (below(right, width - wide + 1) + (wide - 1) / 2)[:, None]
    cos, sin, h, w = cos[:, None], sin[:, None], h[:, None], w[:, None]
    row = (y * cos + (h - 1) / 2)[:, :, None] + (x * sin)[:, None, :]
    column = (x * cos + (w - 1) / 2)[:, None, :] - (y * sin)[:, :, None]
    return np.rint(row).astype(np.int64), np.rint(column).astype(np.int64)


def jitter(x: Tensor, mask: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor) -> Tensor:
    """Apply the three factors (n,) to images (n, C, H, W); contrast refers to the mean grey where `mask` (n, H, W).

    All three are linear and map greys to greys, so their order does not matter.
    """
    planes, covered = x.flatten(2), mask.flatten(1).to(x.dtype)
    channels = x.shape[1]
    luma = x.new_tensor(LUMA) if channels == len(LUMA) else x.new_full((channels,), 1 / channels)
    sums = (planes @ covered.unsqueeze(2)).squeeze(2)
    mean = (sums @ luma) / covered.sum(1)
    if channels == len(LUMA):
        planes = torch.lerp((luma @ planes).unsqueeze(1), planes, saturation.view(-1, 1, 1))
    offset = mean * brightness * (1 - contrast)
    return torch.addcmul(offset.view(-1, 1, 1), planes, (brightness * contrast).view(-1, 1, 1)).view(x.shape)


def _whole(u: Real, low: int, high: int) -> Whole:
    """Map uniform draws in [0, 1) to uniform whole numbers low..high."""
    return low + below(u, high - low + 1)


def _paste(x: Tensor, pixels: Whole, mask: Mask, factors: list[Real]) -> Tensor:
    """Return x with jittered pixels from the flat positions `pixels` (n, H, W) where `mask` (n, H, W)."""
    covered = torch.from_numpy(mask).to(x.device)
    brightness, contrast, saturation = torch.from_numpy(between(np.stack(factors), *JITTER)).to(x)
    patch = jitter(take(x, pixels), covered, brightness, contrast, saturation)
    low, high = x.flatten(1).aminmax(dim=1)
    patch = patch.clamp(low.view(-1, 1, 1, 1), high.view(-1, 1, 1, 1))
    return torch.where(covered.unsqueeze(1), patch, x)
