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
PRICE_STEPS, PRICE_ENTROPY = 8, 0.3


def assignment(costs: Tensor) -> Tensor:
    """The cheapest permutation (n,); of equally cheap ones, that which leaves most neurons where they are."""
    places = torch.arange(len(costs))
    least, best = costs.min(dim=1)
    best = torch.where(costs.diagonal() <= least, places, best)
    # If every place can have its favourite neuron, no assignment is cheaper.
    if len(best.unique()) == len(best):
        return best
    # Every neuron is taken once, so that taking a price off each of them changes no choice.
    left = costs.to(torch.float64, copy=True).sub_(_prices(costs))
    # Less than any difference that counts: it only decides between equals, such as neurons without a weight.
    left.diagonal().sub_(1e-9 * (costs.mean(dtype=torch.float64) - least.min()))
    return torch.from_numpy(linear_sum_assignment(left.numpy())[1]).long()


def _prices(costs: Tensor) -> Tensor:
    """Roughly what each neuron (n,) costs wherever it goes: without it, the search is about twice as fast.

    The dual variables of a plan with some entropy, by a few of Sinkhorn's steps.
    """
    left = costs.float()
    left = left - left.amin(dim=1, keepdim=True)
    least = left.amin(dim=0)
    left -= least
    # Entropy on the scale of the choice that a place has among its cheapest neurons.
    few = left[::16].kthvalue(min(4, len(left)), dim=1).values
    entropy = (PRICE_ENTROPY * few.mean()).clamp_min(torch.finfo(left.dtype).tiny)
    # Each row and each column has a 1: a step scales by n at most, so that eight of them are safe in float32.
    near = left.div_(-entropy).exp_()
    scales = torch.ones(len(costs))
    for _ in range(PRICE_STEPS):
        scales = 1 / ((1 / (near @ scales)) @ near)
    return least + entropy * scales.log()


def sinkhorn(costs: Tensor, entropy: float) -> Tensor:
    """The plan (n, n) of least cost plus entropy, relative to the largest cost; through POT. Rows add up to 1."""
    import ot

    costs = costs.double()
    scaled = costs / costs.max().clamp_min(torch.finfo(costs.dtype).tiny)
    masses = torch.full((len(costs),), 1 / len(costs), dtype=torch.float64)
    # Logarithms keep exp(-cost / entropy) from vanishing, and are much slower.
    method = "sinkhorn_log" if entropy < 0.005 else "sinkhorn"
    plan = ot.sinkhorn(masses, masses, scaled, reg=entropy, method=method, warn=False)
    return plan / plan.sum(dim=1, keepdim=True)


def entropic(entropy: float) -> Solver:
    """`sinkhorn` as a solver, if POT is installed."""
    if importlib.util.find_spec("ot") is None:
        raise UserError(f"Sinkhorn with entropy {entropy} needs POT: pip install 'fedwild[ot]'.")
    return partial(sinkhorn, entropy=entropy)
