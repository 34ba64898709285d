"""Activations as vectors short enough for a covariance."""

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
    """Averages activations over a coarser grid, and spreads such averages again.

    Where the sides do not divide, places of the grid overlap by one row, as torch's adaptive pooling has it.
    """

    shape: tuple[int, ...]
    """Of one sample's activations: (channels, *sides), or (features,)."""
    sides: tuple[int, ...]
    """Of the grid; as those of the activations where nothing is averaged."""

    @classmethod
    def within(cls, shape: tuple[int, ...], limit: int) -> Grid:
        """The finest grid with at most `limit` numbers per sample; one place per channel if even that is more."""
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

    def vectors(self, h: Tensor) -> Tensor:
        """(n, D) of activations h (n, *shape)."""
        if self.sides == self.shape[1:]:
            return h.flatten(1)
        return _POOL[len(self.sides)](h, self.sides).flatten(1)

    def activations(self, v: Tensor) -> Tensor:
        """(n, *shape) of vectors v (n, D): every place has the average of the grid's place nearest to it."""
        h = v.reshape(len(v), self.shape[0], *self.sides)
        return h if self.sides == self.shape[1:] else F.interpolate(h, size=self.shape[1:], mode="nearest")
