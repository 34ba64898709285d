"""Krum and Multi-Krum. Blanchard, El Mhamdi, Guerraoui, Stainer: Machine learning with adversaries: Byzantine tolerant
gradient descent. NeurIPS 2017.

With n clients, of which f may be attackers, the score of client i is the sum of the squared distances to its n - f - 2
nearest other clients. Krum takes the model with the smallest score, Multi-Krum the mean of the m models with the
smallest scores. All clients count equally.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field
from torch import Tensor

from fedwild.aggregation.base import AGGREGATIONS, Aggregation
from fedwild.aggregation.stack import Stack, Stacked
from fedwild.contract import Tensors


@AGGREGATIONS.add("krum")
class Krum(Stacked):
    """The model that is nearest to its neighbours, and only that one. Tolerates the share `attackers`."""

    class Params(Aggregation.Params):
        attackers: float = Field(0.3, ge=0, lt=0.5, description="share of clients that may be attackers, rounded down")

    params: Params

    def merge(self, stack: Stack, reference: Tensors | None) -> dict[str, Tensor]:
        scores = krum_scores(stack.squared_distances(), int(self.params.attackers * len(stack)))
        # A stable sort: of equal scores, the first name wins.
        best = np.argsort(scores, kind="stable")[: self.count(len(stack))]
        shares = np.zeros(len(stack))
        shares[best] = 1 / len(best)
        return stack.combine(shares)

    def count(self, clients: int) -> int:
        """Return m, the number of models to average."""
        return 1


@AGGREGATIONS.add("multi-krum")
class MultiKrum(Krum):
    """The mean of the models that are nearest to their neighbours. Tolerates the share `attackers`."""

    class Params(Krum.Params):
        keep: int | None = Field(None, ge=1, description="number of models to average (default: all but the attackers)")

    params: Params

    def count(self, clients: int) -> int:
        return min(clients, self.params.keep or clients - int(self.params.attackers * clients))


def krum_scores(squared: np.ndarray, attackers: int) -> np.ndarray:
    """Return the scores (n,) from squared distances (n, n). At least one neighbour counts, if there is any."""
    count = len(squared)
    neighbours = min(count - 1, max(1, count - attackers - 2))
    others = squared + np.diag(np.full(count, np.inf))
    return np.sort(others, axis=1)[:, :neighbours].sum(axis=1)
