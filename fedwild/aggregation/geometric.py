"""The geometric median. Pillutla, Kakade, Harchaoui: Robust aggregation for federated learning. IEEE Transactions on
Signal Processing 70, 2022.

It is the point v with the smallest sum_k a_k ||v - x_k||, where a_k are the clients' weights. The smoothed
Weiszfeld algorithm finds it by weighted means with weights a_k / max(nu, ||v - x_k||). All its points are
weighted means of the x_k, so that it needs only their distances.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedwild.aggregation.base import AGGREGATIONS
from fedwild.aggregation.stack import Stack, Stacked
from fedwild.contract import Tensors

SMOOTHING = 1e-6
"""nu as a share of the largest distance between two clients."""
MAX_STEPS = 10_000
TOLERANCE = 1e-12
"""The steps end when no client's share changes by more."""


@AGGREGATIONS.add("geometric-median")
class GeometricMedian(Stacked):
    """The point with the smallest sum of distances to the clients' models. Tolerates less than half of the weights."""

    def merge(self, stack: Stack, reference: Tensors | None) -> dict[str, Tensor]:
        return stack.combine(weiszfeld(stack.squared_distances(), np.array(stack.weights)))


def weiszfeld(squared: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the shares (n,) of points in their geometric median, from squared distances (n, n) and weights (n,)."""
    nu = SMOOTHING * float(np.sqrt(squared.max()))
    shares = weights / weights.sum()
    for _ in range(MAX_STEPS if nu else 0):
        pulls = weights / np.maximum(nu, distances_to(squared, shares))
        before, shares = shares, pulls / pulls.sum()
        if np.abs(shares - before).max() <= TOLERANCE:
            break
    return shares


def distances_to(squared: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return the distances (n,) of points to v = sum_j shares_j x_j, where shares sum to 1.

    ||v - x_k||^2 = sum_j shares_j ||x_j - x_k||^2 - 1/2 sum_ij shares_i shares_j ||x_i - x_j||^2.
    """
    to_each = squared @ shares
    return np.sqrt(np.maximum(to_each - shares @ to_each / 2, 0.0))
