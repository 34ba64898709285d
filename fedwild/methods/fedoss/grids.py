"""Activations as vectors that are short enough for a covariance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

_POOL: dict[int, Callable[..., Tensor]] = {
    1: F.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,
    3: F.adaptive_avg_pool3d,
}


@dataclass(frozen=True)
class Grid:
    """Averages activations over a coarser grid, and spreads such averages over the original positions.

    Where the sides are not divisible, cells of the grid overlap by one row, as in torch's adaptive pooling.
    """

    shape: tuple[int, ...]
    """Shape of one sample's activations: (channels, *sides), or (features,)."""
    sides: tuple[int, ...]
    """Sides of the grid; those of the activations if nothing is averaged."""

    @classmethod
    def within(cls, shape: tuple[int, ...], limit: int) -> Grid:
        """Return the finest grid with at most `limit` numbers per sample, but at least one cell per channel."""
        sides = shape[1:]
        longest = max(sides, default=1)
        for side in range(longest, 0, -1):
            coarse = tuple(min(side, full) for full in sides)
            if shape[0] * math.prod(coarse) <= limit:
                return cls(shape, coarse)
        return cls(shape, (1,) * len(sides))

    @property
    def dims(self) -> int:
        """D, the length of the vectors."""
        return self.shape[0] * math.prod(self.sides)

    def to_vectors(self, h: Tensor) -> Tensor:
        """Return vectors (n, D) of activations h (n, *shape)."""
        if self.sides == self.shape[1:]:
            return h.flatten(1)
        return _POOL[len(self.sides)](h, self.sides).flatten(1)

    def to_activations(self, v: Tensor) -> Tensor:
        """Return activations (n, *shape) of vectors v (n, D): each position takes the average of its nearest cell."""
        h = v.reshape(len(v), self.shape[0], *self.sides)
        return h if self.sides == self.shape[1:] else F.interpolate(h, size=self.shape[1:], mode="nearest")
