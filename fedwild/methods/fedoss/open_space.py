"""Federated open space sampling (section III.C): Gaussians of pushed samples, and draws from their outskirts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.contract import Payload
from fedwild.core.errors import BadReply
from fedwild.core.payload import check_like
from fedwild.methods.fedoss.settings import GaussianSettings
from fedwild.statistics import Gaussian, Moments, draw_any, draw_below_density, draw_least_likely
from fedwild.statistics.moments import spread_shape

MIN_SAMPLES = 11
"""Nothing is drawn from a Gaussian that was estimated from fewer pushed samples."""


_POOL: dict[int, Any] = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


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


@dataclass(frozen=True)
class OpenSpace:
    """Draws virtual unknown samples from where the Gaussian of each class is unlikely (Eq. 5)."""

    gaussians: Mapping[int, Gaussian]
    grid: Grid
    settings: GaussianSettings
    rng: np.random.Generator
    device: torch.device

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return activations (n, ...) at the cut, and the class of each one's Gaussian (n,)."""
        drawn = {k: gaussian.transform(self.draw(gaussian)) for k, gaussian in self.gaussians.items()}
        near = [torch.full((len(x),), k) for k, x in drawn.items()]
        activations, classes = self.grid.to_activations(torch.cat(list(drawn.values()))), torch.cat(near)
        if self.settings.max_drawn is not None:
            chosen = self.rng.permutation(len(classes))[: self.settings.max_drawn]
            activations, classes = activations[chosen], classes[chosen]
        return activations.to(self.device), classes.to(self.device)

    def draw(self, gaussian: Gaussian) -> Tensor:
        """Return standard-normal vectors (n, D) as `select` demands."""
        p = self.settings
        if p.select == "density" and p.log_density is not None:
            return draw_below_density(gaussian, p.log_density, p.draws, p.keep, self.rng)
        draw = draw_least_likely if p.select == "lowest" else draw_any
        return draw(gaussian.dims, p.draws, p.keep, self.rng)


def store_gaussians(state: Payload, merged: Mapping[int, Moments]) -> list[int]:
    """Store a Gaussian for every class with enough samples in `state`; other classes keep theirs.

    Return the classes whose covariance is invalid.
    """
    invalid = []
    for k, moments in merged.items():
        if moments.count >= MIN_SAMPLES:
            try:
                state.put(f"gaussians/{k}", Gaussian.of(moments).tensors())
            except ValueError:
                invalid.append(k)
    return invalid


def load_gaussians(state: Payload) -> dict[int, Gaussian]:
    """Return the Gaussians by class."""
    return {int(k): Gaussian(**tensors) for k, tensors in state.subgroups("gaussians").items()}


def write_moments(reply: Payload, moments: Mapping[int, Moments]) -> None:
    """Add the moments of pushed samples to a reply."""
    reply.info["counts"] = {str(k): part.count for k, part in moments.items()}
    for k, part in moments.items():
        reply.put(f"statistics/{k}", part.to_tensors())


def read_moments(reply: Payload) -> dict[int, Moments]:
    """Return the moments in a reply."""
    counts = reply.info.get("counts", {})
    return {int(k): Moments.from_tensors(counts[k], tensors) for k, tensors in reply.subgroups("statistics").items()}


def check_moments(reply: Payload, classes: int, dims: int, wanted: bool) -> None:
    """Reject moments that were not requested, or whose shapes do not match their counts."""
    counts, statistics = reply.info.get("counts", {}), reply.subgroups("statistics")
    if not isinstance(counts, dict) or counts.keys() != statistics.keys():
        raise BadReply("info 'counts' must have a count for every class in 'statistics'")
    if statistics and not wanted:
        raise BadReply("statistics were not requested in this round")
    for k, tensors in statistics.items():
        count = counts[k]
        if k not in {str(number) for number in range(classes)}:
            raise BadReply(f"statistics of {k[:40]!r}, which is not a class")
        if type(count) is not int or not 1 <= count <= reply.info["samples"]:
            raise BadReply(f"the count of class {k} is {str(count)[:40]}, expected 1 to the number of samples")
        mean, spread = (torch.empty(shape, device="meta") for shape in ((dims,), spread_shape(count, dims)))
        check_like(tensors, {"mean": mean, "spread": spread}, f"statistics of class {k}")
