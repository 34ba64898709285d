"""Optimal transport between two sets of neurons, from their costs (n, n): rows are places, columns are neurons.

With as many neurons as places, all of equal mass, an optimal transport plan is a permutation (Birkhoff), so the exact
solution is an assignment and needs no linear program.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedwild.core.errors import UserError

Solver = Callable[[Tensor], Tensor]
"""Turns costs (n, n) into a map: a permutation (n,), where place i gets neuron map[i], or a plan (n, n) whose rows sum
to 1."""
PRICE_STEPS, PRICE_ENTROPY = 8, 0.3


def solve_assignment(costs: Tensor) -> Tensor:
    """Return the cheapest permutation (n,). Among equally cheap ones, it keeps the most neurons in place."""
    places = torch.arange(len(costs))
    least, best = costs.min(dim=1)
    best = torch.where(costs.diagonal() <= least, places, best)
    # If every place can have its cheapest neuron, no assignment is cheaper.
    if len(best.unique()) == len(best):
        return best
    # Each neuron is used exactly once, so subtracting a price per neuron does not change the solution.
    left = costs.to(torch.float64, copy=True).sub_(_prices(costs))
    # Smaller than any relevant difference: it only breaks ties, as between neurons without weights.
    left.diagonal().sub_(1e-9 * (costs.mean(dtype=torch.float64) - least.min()))
    return torch.from_numpy(linear_sum_assignment(left.numpy())[1]).long()


def _prices(costs: Tensor) -> Tensor:
    """Return the approximate cost (n,) of each neuron at any place. Without it, the search takes about twice as long.

    These are the dual variables of an entropic plan after a few Sinkhorn steps.
    """
    left = costs.float()
    left = left - left.amin(dim=1, keepdim=True)
    least = left.amin(dim=0)
    left -= least
    # The entropy is on the scale of the differences between the cheapest neurons of a place.
    few = left[::16].kthvalue(min(4, len(left)), dim=1).values
    entropy = (PRICE_ENTROPY * few.mean()).clamp_min(torch.finfo(left.dtype).tiny)
    # Each row and each column contains a 1, so a step scales by n at most and eight steps are safe in float32.
    near = left.div_(-entropy).exp_()
    scales = torch.ones(len(costs))
    for _ in range(PRICE_STEPS):
        scales = 1 / ((1 / (near @ scales)) @ near)
    return least + entropy * scales.log()


def sinkhorn(costs: Tensor, entropy: float) -> Tensor:
    """Return the entropic plan (n, n) for costs divided by their maximum, computed by POT. Its rows sum to 1."""
    import ot

    costs = costs.double()
    scaled = costs / costs.max().clamp_min(torch.finfo(costs.dtype).tiny)
    masses = torch.full((len(costs),), 1 / len(costs), dtype=torch.float64)
    # The log domain avoids underflow of exp(-cost / entropy) but is much slower.
    method = "sinkhorn_log" if entropy < 0.005 else "sinkhorn"
    plan = ot.sinkhorn(masses, masses, scaled, reg=entropy, method=method, warn=False)
    return plan / plan.sum(dim=1, keepdim=True)


def sinkhorn_solver(entropy: float) -> Solver:
    """Return `sinkhorn` with this entropy as a solver. Raises `UserError` if POT is not installed."""
    if importlib.util.find_spec("ot") is None:
        raise UserError(f"method.align = {entropy} (Sinkhorn) needs POT: pip install 'fedwild[ot]'.")
    return partial(sinkhorn, entropy=entropy)
