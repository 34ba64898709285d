"""Outliers by data destruction (FedOV, section 3.4 and Appendix B.1): one intense random operation per image.

Every operation maps images x (n, C, H, W) to new ones of the same shape and type, with parameters drawn per
sample from a CPU generator; x is never changed. Parameters, source maps and matrices are NumPy arrays, so that a
seed means the same on every device and small arrays cost little. No operation loops over samples: cropping and
blurring are one product with a matrix per sample and axis, pasting, swapping and rotating one gather.
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
LONGEST_REACH = 4  # a kernel of length 2 * reach + 1, at most 9


def crop(x: Tensor, generator: torch.Generator) -> Tensor:
    """A random box of 10-33 % of the image, bilinearly resized to the whole of it."""
    height, width = x.shape[-2:]
    area, aspect, top, left = uniforms(4, len(x), generator)
    h, w = box(between(area, *CROP_AREA), log_between(aspect, *CROP_ASPECT), height, width)
    return resized_crop(x, below(top, height - h + 1), below(left, width - w + 1), h, w)


def resized_crop(x: Tensor, top: Whole, left: Whole, h: Whole, w: Whole) -> Tensor:
    """Each sample's box of h x w pixels at (top, left), all (n,), resized to (H, W) with half-pixel centres."""
    return _separable(x, _stretching(top, h, x.shape[-2]), _stretching(left, w, x.shape[-1]))


def blur(x: Tensor, generator: torch.Generator) -> Tensor:
    """Gaussian blur with a kernel of {3, 5, 7, 9} x {1, 3, 5} in either orientation and sigma in (10, 100)."""
    long, short, axis, sigma = uniforms(4, len(x), generator)
    upright = axis < 0.5
    far, near = 1 + below(long, 4), below(short, 3)
    vertical, horizontal = np.where(upright, far, near), np.where(upright, near, far)
    return gaussian_blur(x, vertical, horizontal, between(sigma, *BLUR_SIGMA))


def gaussian_blur(x: Tensor, vertical: Whole, horizontal: Whole, sigma: Real) -> Tensor:
    """Blur by kernels of 2 * vertical + 1 by 2 * horizontal + 1 pixels, all (n,), with reflect padding.

    Reflection defines at most side - 1 pixels beyond the edge: on smaller images the kernel is cut to that.
    """
    return _separable(x, _smoothing(vertical, sigma, x.shape[-2]), _smoothing(horizontal, sigma, x.shape[-1]))


def erase(x: Tensor, generator: torch.Generator) -> Tensor:
    """A random box of 33-50 % of the image set to 0 in all channels."""
    height, width = x.shape[-2:]
    area, aspect, top, left = uniforms(4, len(x), generator)
    h, w = fitting_box(between(area, *ERASE_AREA), log_between(aspect, *ERASE_ASPECT), height, width)
    rows = within(below(top, height - h + 1), h, height)
    columns = within(below(left, width - w + 1), w, width)
    hole = torch.from_numpy(rows[:, None, :, None] & columns[:, None, None, :])
    return x.masked_fill(hole.to(x.device), 0)


def paste(x: Tensor, generator: torch.Generator) -> Tensor:
    """Half of the image copied over another place along one axis, at least a quarter of the side away."""
    axis, place = uniforms(2, len(x), generator)
    return _moved(x, axis < 0.5, _pasted(place, x.shape[-2]), _pasted(place, x.shape[-1]))


def swap(x: Tensor, generator: torch.Generator) -> Tensor:
    """Upper and lower, or left and right half exchanged; the middle line of an odd side stays in place."""
    (axis,) = uniforms(1, len(x), generator)
    return _moved(x, axis < 0.5, _swapped(x.shape[-2]), _swapped(x.shape[-1]))


def rotate(x: Tensor, generator: torch.Generator) -> Tensor:
    """The leftmost and the rightmost half-size square of a random band of rows, both turned by k * 90 degrees."""
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

# As run by the authors of FedOV; the text of the paper suggests UNIFORM.
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
        """The index of the operation for each of n images, (n,) int64."""
        (place,) = uniforms(1, n, generator)
        return torch.from_numpy(np.searchsorted(self._limits, place, side="right"))

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """x (n, C, H, W) with each image changed by the operation chosen for it."""
        choice = self.choose(len(x), generator).numpy()
        order = choice.argsort(kind="stable")
        counts = np.bincount(choice, minlength=len(self.operations)).tolist()
        parts = x.index_select(0, torch.from_numpy(order).to(x.device)).split(counts)
        # Operations without images are left out for speed; they would draw nothing.
        changed = [
            operation(part, generator) if len(part) else part
            for operation, part in zip(self.operations, parts, strict=True)
        ]
        return torch.cat(changed).index_select(0, torch.from_numpy(order.argsort()).to(x.device))


class Destruction(Choice):
    """Data destruction: one of OPERATIONS for each image and call, with the weights given by name."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        unknown = sorted(set(weights) - set(OPERATIONS))
        if unknown:
            raise ValueError(f"Unknown operations {unknown}; there are {list(OPERATIONS)}.")
        self.names = tuple(weights)
        super().__init__([OPERATIONS[name] for name in self.names], list(weights.values()))


def uniforms(count: int, n: int, generator: torch.Generator) -> Real:
    """`count` vectors of n uniform draws in [0, 1), (count, n)."""
    return torch.rand(count, n, generator=generator, dtype=torch.float64).numpy()


def between(u: Real, low: float, high: float) -> Real:
    """Uniform draws in [0, 1) as uniform ones in [low, high)."""
    return low + (high - low) * u


def log_between(u: Real, low: float, high: float) -> Real:
    """Uniform draws in [0, 1) as log-uniform ones in [low, high)."""
    return np.exp(between(u, math.log(low), math.log(high)))


def below(u: Real, count: int | Whole) -> Whole:
    """Uniform draws in [0, 1) as uniform whole numbers 0..count-1."""
    return (u * count).astype(np.int64)


def box(share: Real, aspect: Real, height: int, width: int) -> tuple[Whole, Whole]:
    """Whole-pixel height and width, (n,), of boxes with a share of the image's area and aspect = h / w.

    A side is at least 1 and at most that of the image.
    """
    area = share * (height * width)
    h = np.maximum(np.minimum(np.rint(np.sqrt(area * aspect)), height), 1)
    w = np.maximum(np.minimum(np.rint(np.sqrt(area / aspect)), width), 1)
    return h.astype(np.int64), w.astype(np.int64)


def fitting_box(share: Real, aspect: Real, height: int, width: int) -> tuple[Whole, Whole]:
    """Like `box`, but a box too long for the image gets the image's side and keeps its area by the other."""
    area = share * (height * width)
    return box(share, np.minimum(np.maximum(aspect, area / width**2), height**2 / area), height, width)


def within(start: Whole, length: int | Whole, size: int) -> Mask:
    """Which of the lines 0..size-1 lie in start..start+length-1; (n, size)."""
    line = np.arange(size)
    return (line >= start[:, None]) & (line < (start + length)[:, None])


def positions(height: int, width: int) -> Whole:
    """The flat position of every pixel, (H, W)."""
    return np.arange(height * width).reshape(height, width)


def take(x: Tensor, pixels: Whole) -> Tensor:
    """x (n, C, H, W) with pixels read from flat source positions (n, H, W), the same in all channels."""
    planes = x.flatten(2)
    source = torch.from_numpy(pixels).flatten(1).unsqueeze(1).to(x.device)
    return planes.gather(2, source.expand_as(planes)).view(x.shape)


def _separable(x: Tensor, rows: Real, columns: Real) -> Tensor:
    """rows @ x @ columns^T per sample and channel, with rows (n, 1, H, H) and columns (n, 1, W, W)."""
    return torch.from_numpy(rows).to(x) @ x @ torch.from_numpy(columns).to(x).mT


def _stretching(start: Whole, length: Whole, size: int) -> Real:
    """Matrices (n, 1, size, size) that stretch lines start..start+length-1 linearly over the whole side."""
    line = np.arange(size, dtype=np.float64)
    start, length = start[:, None], length[:, None]
    place = np.minimum(np.maximum((line + 0.5) * (length / size) - 0.5, 0), length - 1) + start
    weight = place[:, None, :, None] - line
    np.subtract(1, np.abs(weight, out=weight), out=weight)
    return np.maximum(weight, 0, out=weight)


def _smoothing(reach: Whole, sigma: Real, size: int) -> Real:
    """Matrices (n, 1, size, size) of Gaussian kernels of length 2 * reach + 1 with reflect padding."""
    distance = np.arange(LONGEST_REACH + 1)
    weight = np.exp(-0.5 * (distance / sigma[:, None]) ** 2)
    weight *= distance <= np.minimum(reach, size - 1)[:, None]
    weight /= 2 * weight.sum(1, keepdims=True) - 1  # both sides; the centre, whose weight is 1, counts once
    return (weight @ _reflections(size)).reshape(-1, 1, size, size)


@lru_cache(maxsize=32)
def _reflections(size: int) -> Real:
    """How often line i reads line j at each distance of a reflect-padded side; (distances, size * size)."""
    table = torch.zeros(LONGEST_REACH + 1, size, size, dtype=torch.float64)
    line = torch.arange(size)
    for distance in range(min(LONGEST_REACH, size - 1) + 1):
        for step in {distance, -distance}:
            table[distance, line, reflect(line + step, size)] += 1
    return table.flatten(1).numpy()


def _moved(x: Tensor, vertical: Mask, rows: Whole, columns: Whole) -> Tensor:
    """x read from source `rows` (n, H) or (H,) where `vertical` (n,) and from source `columns` elsewhere."""
    height, width = x.shape[-2:]
    rows = np.where(vertical[:, None], rows, np.arange(height))
    columns = np.where(vertical[:, None], np.arange(width), columns)
    return take(x, rows[:, :, None] * width + columns[:, None, :])


def _pasted(place: Real, size: int) -> Whole:
    """Source lines (n, size) after half of them were copied to another place."""
    pairs = _distant_pairs(size)
    source, target = pairs[:, below(place, pairs.shape[1])]
    return np.arange(size) + within(target, size // 2, size) * (source - target)[:, None]


@lru_cache(maxsize=32)
def _distant_pairs(size: int) -> Whole:
    """All (source, target) offsets of a half-size strip that are at least a quarter of the side apart; (2, m)."""
    pairs = np.indices((size - size // 2 + 1,) * 2).reshape(2, -1)
    return pairs[:, np.abs(pairs[0] - pairs[1]) >= max(size // 4, 1)]


def _swapped(size: int) -> Whole:
    """Source lines (size,) after the halves were exchanged."""
    line = np.arange(size)
    half = size // 2
    return np.concatenate([line[size - half :], line[half : size - half], line[:half]])


def _square(height: int, width: int) -> int:
    """The side of the squares that `rotate` turns."""
    return min(height, width) // 2


@lru_cache(maxsize=32)
def _turns(height: int, width: int) -> Whole:
    """From where, relative to itself, each pixel is read when the squares turn by 90, 180, 270 degrees.

    (3, margin + side + margin, width): the band of `side` rows between rows that stay, so that the rows of an
    image with its band anywhere are a window of it.
    """
    side = _square(height, width)
    margin = height - side
    square = positions(height, width)[:side, :side]
    table = np.zeros((3, margin + side + margin, width), dtype=np.int64)
    for quarter in (1, 2, 3):
        band = table[quarter - 1, margin : margin + side]
        band[:, :side] = band[:, width - side :] = np.rot90(square, quarter) - square
    return table
