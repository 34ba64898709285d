"""Where the network is cut, and the shapes that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from fedwild.contract import Rng, Task
from fedwild.core.errors import unknown_name
from fedwild.methods.fedoss.heads import cut_shape, make_branch
from fedwild.methods.fedoss.settings import AUTO, FedOSSParams
from fedwild.models import Network


@dataclass(frozen=True)
class Layout:
    """The cut of a network, and what is attached to it."""

    cut: str
    grid: Grid
    head: dict[str, Tensor]
    """Names, shapes and types of a personal head's tensors, without values."""


class Layouts:
    """The layout of each network, computed once."""

    def __init__(self, params: FedOSSParams) -> None:
        self.params = params
        self._found: dict[Any, Layout] = {}

    def of(self, task: Task, classes: int) -> Layout:
        """Return the layout for a number of known classes."""
        key = (task.model, repr(task.model_params), task.input_shape, classes)
        if key not in self._found:
            network = task.build(classes + 1, Rng(0))
            cut = choose_cut(network, self.params.cut)
            # Seeded, so that the first job of a worker draws the same numbers as any other.
            with Rng(0).seeded("layout"):
                head = make_branch(self.params.branch, network, cut, classes).state_dict()
            grid = Grid.within(cut_shape(network, cut), self.params.dims)
            self._found[key] = Layout(cut, grid, {name: tensor.to("meta") for name, tensor in head.items()})
        return self._found[key]


def choose_cut(network: Network, cut: str) -> str:
    """Return the stage named `cut`. "auto" is the last stage before dense layers, or the last but one without any."""
    if cut != AUTO:
        if cut not in network.cuts:
            raise unknown_name("method.cut", cut, (AUTO, *network.cuts))
        return cut
    dense = network.first_dense()
    end = len(network.cuts) - 1 if dense is None else network.cuts.index(dense)
    return network.cuts[max(0, end - 1)]


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
