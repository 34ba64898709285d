"""Outliers by data destruction (FedOV, section 3.4 and Appendix B.1): one intense random operation per image.

Every operation maps images x (n, C, H, W) to new ones of the same shape and type, with parameters drawn per sample
from a CPU generator; x is not changed. Parameters, source maps and matrices are NumPy arrays, so that a seed gives the
same result on every device and small arrays are cheap. No operation loops over samples: cropping and blurring are one
product with a matrix per sample and axis; pasting, swapping and rotating are one gather.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedwild.data.augment import reflect

Real = NDArray[np.float64]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]
Operation = Callable[[Tensor, torch.Generator], Tensor]

CROP_AREA, CROP_ASPECT = (0.1, 0.33), (3 / 4, 4 / 3)
ERASE_AREA, ERASE_ASPECT = (0.33, 0.5), (0.3, 3.3)
BLUR_SIGMA = (10.0, 100.0)
BLUR_SIDE, BLUR_REACH = 32, 4
"""Blur kernels reach at most 4 pixels on images of at most 32 pixels; those of larger images grow in proportion."""


def crop(x: Tensor, generator: torch.Generator) -> Tensor:
    """Resize a random box of 10-33 % of the image to the whole image, bilinearly."""
    height, width = x.shape[-2:]
    area, aspect, top, left = uniforms(4, len(x), generator)
    h, w = box(between(area, *CROP_AREA), log_between(aspect, *CROP_ASPECT), height, width)
    return resized_crop(x, below(top, height - h + 1), below(left, width - w + 1), h, w)


def resized_crop(x: Tensor, top: Whole, left: Whole, h: Whole, w: Whole) -> Tensor:
    """Resize each sample's box of h x w pixels at (top, left), all (n,), to (H, W) with half-pixel centres."""
    return _apply_separable(x, _stretching(top, h, x.shape[-2]), _stretching(left, w, x.shape[-1]))


def blur(x: Tensor, generator: torch.Generator) -> Tensor:
    """Blur with a Gaussian kernel of {3, 5, 7, 9} x {1, 3, 5} pixels in either orientation, sigma in (10, 100).

    These are the sizes for images of at most 32 pixels. A larger image is blurred as if it were scaled down to 32.
    """
    long, short, axis, sigma = uniforms(4, len(x), generator)
    upright = axis < 0.5
    scale = max(1.0, min(x.shape[-2:]) / BLUR_SIDE)
    lengths = (3 + 2 * below(long, 4), 1 + 2 * below(short, 3))
    far, near = (np.rint((length * scale - 1) / 2).astype(np.int64) for length in lengths)
    vertical, horizontal = np.where(upright, far, near), np.where(upright, near, far)
    return gaussian_blur(x, vertical, horizontal, between(sigma, *BLUR_SIGMA) * scale)


def gaussian_blur(x: Tensor, vertical: Whole, horizontal: Whole, sigma: Real) -> Tensor:
    """Blur with kernels of 2 * vertical + 1 by 2 * horizontal + 1 pixels, all (n,), with reflect padding.

    Reflection defines at most side - 1 pixels beyond the edge, so kernels are cut on smaller images.
    """
    return _apply_separable(x, _smoothing(vertical, sigma, x.shape[-2]), _smoothing(horizontal, sigma, x.shape[-1]))


def erase(x: Tensor, generator: torch.Generator) -> Tensor:
    """Set a random box of 33-50 % of the image to 0 in all channels."""
    height, width = x.shape[-2:]
    area, aspect, top, left = uniforms(4, len(x), generator)
    h, w = fitting_box(between(area, *ERASE_AREA), log_between(aspect, *ERASE_ASPECT), height, width)
    rows = within(below(top, height - h + 1), h, height)
    columns = within(below(left, width - w + 1), w, width)
    hole = torch.from_numpy(rows[:, None, :, None] & columns[:, None, None, :])
    return x.masked_fill(hole.to(x.device), 0)


def paste(x: Tensor, generator: torch.Generator) -> Tensor:
    """Copy half of the image along one axis, by at least a quarter of the side."""
    axis, place = uniforms(2, len(x), generator)
    return _read_lines(x, axis < 0.5, _paste_lines(place, x.shape[-2]), _paste_lines(place, x.shape[-1]))


def swap(x: Tensor, generator: torch.Generator) -> Tensor:
    """Exchange the upper and lower or the left and right half; the middle line of an odd side does not move."""
    (axis,) = uniforms(1, len(x), generator)
    return _read_lines(x, axis < 0.5, _swap_lines(x.shape[-2]), _swap_lines(x.shape[-1]))


def rotate(x: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate the leftmost and the rightmost half-size square of a random band of rows by k * 90 degrees."""
    height, width = x.shape[-2:]
    start, quarter = uniforms(2, len(x), generator)
    margin = height - _square(height, width)
    lines = np.arange(height) + (margin - below(start, margin + 1))[:, None]
    moves = _turns(height, width)[below(quarter, 3)[:, None], lines]
    return take(x, positions(height, width) + moves)


OPERATIONS: dict[str, Operation] = {
    "crop": crop,
    "blur": blur,
    "erase": erase,
    "paste": paste,
    "swap": swap,
    "rotate": rotate,
}

# As in the program of FedOV's authors; the text of the paper suggests UNIFORM.
AUTHORS: dict[str, float] = {
    "crop": 1 / 7,
    "blur": 1 / 7,
    "erase": 1 / 7,
    "paste": 4 / 21,
    "swap": 2 / 21,
    "rotate": 2 / 7,
}
UNIFORM: dict[str, float] = dict.fromkeys(OPERATIONS, 1 / 6)


class Choice:
    """One of several operations for each image, at random with the given weights."""

    def __init__(self, operations: Sequence[Operation], weights: Sequence[float]) -> None:
        if len(operations) != len(weights) or not operations:
            raise ValueError(f"There must be one weight per operation, not {len(weights)} for {len(operations)}.")
        if not all(math.isfinite(weight) and weight > 0 for weight in weights):
            raise ValueError(f"Weights must be positive numbers, not {list(weights)}.")
        self.operations = tuple(operations)
        shares = np.asarray(weights, dtype=np.float64)
        self._limits = (shares / shares.sum()).cumsum()[:-1]

    def choose(self, n: int, generator: torch.Generator) -> Tensor:
        """Return the index of the operation for each of n images, (n,) int64."""
        (place,) = uniforms(1, n, generator)
        return torch.from_numpy(np.searchsorted(self._limits, place, side="right"))

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return x (n, C, H, W) with each image changed by the operation chosen for it."""
        choice = self.choose(len(x), generator).numpy()
        order = choice.argsort(kind="stable")
        counts = np.bincount(choice, minlength=len(self.operations)).tolist()
        parts = x.index_select(0, torch.from_numpy(order).to(x.device)).split(counts)
        # Operations without images are skipped for speed; they would draw nothing.
        changed = [
            operation(part, generator) if len(part) else part
            for operation, part in zip(self.operations, parts, strict=True)
        ]
        return torch.cat(changed).index_select(0, torch.from_numpy(order.argsort()).to(x.device))


class Destruction(Choice):
    """Data destruction: one of OPERATIONS per image, with weights by name."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        unknown = sorted(set(weights) - set(OPERATIONS))
        if unknown:
            raise ValueError(f"Unknown operations {unknown}: choose from {list(OPERATIONS)}.")
        self.names = tuple(weights)
        super().__init__([OPERATIONS[name] for name in self.names], list(weights.values()))


def uniforms(count: int, n: int, generator: torch.Generator) -> Real:
    """Return uniform draws in [0, 1), (count, n)."""
    return torch.rand(count, n, generator=generator, dtype=torch.float64).numpy()


def between(u: Real, low: float, high: float) -> Real:
    """Map uniform draws in [0, 1) to uniform ones in [low, high)."""
    return low + (high - low) * u


def log_between(u: Real, low: float, high: float) -> Real:
    """Map uniform draws in [0, 1) to log-uniform ones in [low, high)."""
    return np.exp(between(u, math.log(low), math.log(high)))


def below(u: Real, count: int | Whole) -> Whole:
    """Map uniform draws in [0, 1) to uniform whole numbers 0..count-1."""
    return (u * count).astype(np.int64)


def box(share: Real, aspect: Real, height: int, width: int) -> tuple[Whole, Whole]:
    """Return whole-pixel heights and widths (n,) of boxes with a share of the image's area and aspect = h / w.

    A side is at least 1 and at most that of the image.
    """
    area = share * (height * width)
    h = np.maximum(np.minimum(np.rint(np.sqrt(area * aspect)), height), 1)
    w = np.maximum(np.minimum(np.rint(np.sqrt(area / aspect)), width), 1)
    return h.astype(np.int64), w.astype(np.int64)


def fitting_box(share: Real, aspect: Real, height: int, width: int) -> tuple[Whole, Whole]:
    """Like `box`, but a box longer than the image gets the image's side and another side that keeps its area."""
    area = share * (height * width)
    return box(share, np.minimum(np.maximum(aspect, area / width**2), height**2 / area), height, width)


def within(start: Whole, length: int | Whole, size: int) -> Mask:
    """Return which of the lines 0..size-1 lie in start..start+length-1, (n, size)."""
    line = np.arange(size)
    return (line >= start[:, None]) & (line < (start + length)[:, None])


def positions(height: int, width: int) -> Whole:
    """Return the flat position of every pixel, (H, W)."""
    return np.arange(height * width).reshape(height, width)


def take(x: Tensor, pixels: Whole) -> Tensor:
    """Return x (n, C, H, W) with pixels read from flat source positions (n, H, W), the same in all channels."""
    planes = x.flatten(2)
    source = torch.from_numpy(pixels).flatten(1).unsqueeze(1).to(x.device)
    return planes.gather(2, source.expand_as(planes)).view(x.shape)


def _apply_separable(x: Tensor, rows: Real, columns: Real) -> Tensor:
    """Return rows @ x @ columns^T per sample and channel, with rows (n, 1, H, H) and columns (n, 1, W, W)."""
    return torch.from_numpy(rows).to(x) @ x @ torch.from_numpy(columns).to(x).mT


def _stretching(start: Whole, length: Whole, size: int) -> Real:
    """Return matrices (n, 1, size, size) that stretch lines start..start+length-1 linearly over the whole side."""
    line = np.arange(size, dtype=np.float64)
    start, length = start[:, None], length[:, None]
    place = np.minimum(np.maximum((line + 0.5) * (length / size) - 0.5, 0), length - 1) + start
    weight = place[:, None, :, None] - line
    np.subtract(1, np.abs(weight, out=weight), out=weight)
    return np.maximum(weight, 0, out=weight)


def _smoothing(reach: Whole, sigma: Real, size: int) -> Real:
    """Return matrices (n, 1, size, size) of Gaussian kernels of length 2 * reach + 1 with reflect padding."""
    furthest = int(reach.max(initial=BLUR_REACH))
    distance = np.arange(furthest + 1)
    weight = np.exp(-0.5 * (distance / sigma[:, None]) ** 2)
    weight *= distance <= np.minimum(reach, size - 1)[:, None]
    weight /= 2 * weight.sum(1, keepdims=True) - 1  # both sides; the centre, whose weight is 1, counts once
    return (weight @ _reflections(size, furthest)).reshape(-1, 1, size, size)


@lru_cache(maxsize=32)
def _reflections(size: int, furthest: int) -> Real:
    """Return how often line i reads line j at distances 0..furthest of a reflect-padded side, (.., size * size)."""
    table = torch.zeros(furthest + 1, size, size, dtype=torch.float64)
    line = torch.arange(size)
    for distance in range(min(furthest, size - 1) + 1):
        for step in {distance, -distance}:
            table[distance, line, reflect(line + step, size)] += 1
    return table.flatten(1).numpy()


def _read_lines(x: Tensor, vertical: Mask, rows: Whole, columns: Whole) -> Tensor:
    """Return x read from source `rows` (n, H) or (H,) where `vertical` (n,), else from source `columns`."""
    height, width = x.shape[-2:]
    rows = np.where(vertical[:, None], rows, np.arange(height))
    columns = np.where(vertical[:, None], np.arange(width), columns)
    return take(x, rows[:, :, None] * width + columns[:, None, :])


def _paste_lines(place: Real, size: int) -> Whole:
    """Return the source lines (n, size) after half of them were copied to another place."""
    pairs = _distant_pairs(size)
    source, target = pairs[:, below(place, pairs.shape[1])]
    return np.arange(size) + within(target, size // 2, size) * (source - target)[:, None]


@lru_cache(maxsize=32)
def _distant_pairs(size: int) -> Whole:
    """Return all (source, target) offsets of a half-size strip at least a quarter of the side apart, (2, m)."""
    pairs = np.indices((size - size // 2 + 1,) * 2).reshape(2, -1)
    return pairs[:, np.abs(pairs[0] - pairs[1]) >= max(size // 4, 1)]


def _swap_lines(size: int) -> Whole:
    """Return the source lines (size,) after the halves were exchanged."""
    line = np.arange(size)
    half = size // 2
    return np.concatenate([line[size - half :], line[half : size - half], line[:half]])


def _square(height: int, width: int) -> int:
    """Return the side of the squares that `rotate` rotates."""
    return min(height, width) // 2


@lru_cache(maxsize=32)
def _turns(height: int, width: int) -> Whole:
    """Return the offset from which each pixel is read when the squares rotate by 90, 180 and 270 degrees.

    The shape is (3, margin + side + margin, width): the band of `side` rows between rows that do not move, so that the
    rows of an image with its band anywhere are a window of it.
    """
    side = _square(height, width)
    margin = height - side
    square = positions(height, width)[:side, :side]
    table = np.zeros((3, margin + side + margin, width), dtype=np.int64)
    for quarter in (1, 2, 3):
        band = table[quarter - 1, margin : margin + side]
        band[:, :side] = band[:, width - side :] = np.rot90(square, quarter) - square
    return table
