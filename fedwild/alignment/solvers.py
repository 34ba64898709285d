"""Optimal transport between two sets of neurons, by their costs (n, n): rows are places, columns are neurons.

With as many neurons as places, all of equal mass, an optimal transport plan is an assignment (Birkhoff), so the
exact solution needs no linear programme.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedwild.errors import UserError

Solver = Callable[[Tensor], Tensor]
"""Costs (n, n) to a map: a permutation (n,), place i gets neuron map[i]; or a plan (n, n) with rows that add to 1."""


def assignment(costs: Tensor) -> Tensor:
    """The cheapest permutation (n,). Neurons stay where they are if nothing is cheaper than that."""
    costs = costs.double()
    places = torch.arange(len(costs))
    least = costs.amin(dim=1)
    best = torch.where(costs.diagonal() <= least, places, costs.argmin(dim=1))
    # If every place can have its favourite neuron, no assignment is cheaper.
    if len(best.unique()) == len(best):
        return best
    # Taking out what every neuron costs a place anyway changes no choice, and leaves less to search.
    left = costs - least[:, None]
    left -= left.amin(dim=0)
    neurons = linear_sum_assignment(left.numpy())[1]
    found = torch.from_numpy(neurons).long()
    return places if costs.diagonal().sum() <= costs[places, found].sum() else found


def sinkhorn(costs: Tensor, entropy: float) -> Tensor:
    """The plan (n, n) of least cost plus entropy, relative to the largest cost; through POT. Rows add up to 1."""
    import ot

    scaled = costs.double() / costs.max().clamp_min(torch.finfo(torch.float64).tiny)
    masses = torch.full((len(costs),), 1 / len(costs), dtype=torch.float64)
    plan = ot.sinkhorn(masses, masses, scaled, reg=entropy, method="sinkhorn_log", warn=False)
    return plan / plan.sum(dim=1, keepdim=True)


def entropic(entropy: float) -> Solver:
    """`sinkhorn` as a solver, if POT is installed."""
    if importlib.util.find_spec("ot") is None:
        raise UserError(f"Sinkhorn with entropy {entropy} needs POT: pip install 'fedwild[ot]'.")
    return partial(sinkhorn, entropy=entropy)
