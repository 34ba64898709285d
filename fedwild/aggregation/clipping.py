"""Centred clipping. Karimireddy, He, Jaggi: Learning from history for Byzantine robust optimization. ICML 2021.

From v_0, the server's weights, some steps of

    v <- v + 1/n sum_k (x_k - v) min(1, tau / ||x_k - v||)

Every v is a weighted mean of the x_k and v_0, so that it needs only their distances. All clients count equally.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field
from torch import Tensor

from fedwild.aggregation.base import AGGREGATIONS, Aggregation
from fedwild.aggregation.geometric import distances_to
from fedwild.aggregation.stack import Stack, Stacked
from fedwild.contract import Tensors


@AGGREGATIONS.add("centered-clipping")
class CenteredClipping(Stacked):
    """Averages updates that are clipped around a common centre."""

    class Params(Aggregation.Params):
        radius: float | None = Field(
            None, gt=0, description="tau: longer updates are shortened to this (default: the median length)"
        )
        steps: int = Field(3, ge=1, description="steps of the centre in a round")

    params: Params

    def merge(self, stack: Stack, reference: Tensors | None) -> dict[str, Tensor]:
        shares = clip_around(stack.squared_distances(reference), len(stack), self.params.radius, self.params.steps)
        return stack.combine(shares, reference)


def clip_around(squared: np.ndarray, clients: int, radius: float | None, steps: int) -> np.ndarray:
    """Return the shares of all points in v after some steps, from squared distances.

    The first points are the clients'. The centre starts at the last point or, if all are clients', at the one with the
    smallest median distance to the others.
    """
    shares = np.zeros(len(squared))
    shares[-1 if len(squared) > clients else np.argmin(np.median(squared, axis=1))] = 1.0
    for _ in range(steps):
        lengths = distances_to(squared, shares)[:clients]
        tau = float(np.median(lengths)) if radius is None else radius
        pulls = np.where(lengths > tau, tau / np.maximum(lengths, tau or 1.0), 1.0) / clients
        shares = shares * (1 - pulls.sum())
        shares[:clients] += pulls
    return shares
