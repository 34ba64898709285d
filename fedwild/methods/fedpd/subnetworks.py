"""Which weights of a network matter to which loss: FedPD's local parameter disentanglement (section 4.1)."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from fedwild.contract import Tensors
from fedwild.models import LayerGraph, Network
from fedwild.training import ClientCorrection, Descent, Objective

Measure = Literal["grad*weight", "grad"]
Masks = dict[str, Tensor]
"""By the name of a weight, which of its elements belong to a subnetwork: bool, with the weight's shape."""


class Parts(NamedTuple):
    """The four parts into which two subnetworks divide a weight. Every element is in exactly one of them."""

    close: Tensor
    """Only in the closed-set subnetwork (Eq. 8)."""
    open: Tensor
    """Only in the open-set subnetwork (Eq. 9)."""
    share: Tensor
    """In both (Eq. 10)."""
    rest: Tensor
    """In neither; the paper does not define what happens to these weights."""

    @classmethod
    def of(cls, close: Tensor, open_: Tensor) -> Parts:
        return cls(close & ~open_, open_ & ~close, open_ & close, ~(open_ | close))


class Importance(Descent):
    """Sums, over the last epoch, how much each conv or linear weight matters to L_close and to L_open.

    Both losses come from one forward pass and have one backward pass each. The step follows
    grad L_close + open_weight * grad L_open, as it would without this measurement.
    """

    def __init__(self, model: Network, graph: LayerGraph, measure: Measure) -> None:
        self.measure = measure
        self._weights = {name: model.get_parameter(name) for name in weight_names(graph)}
        self.close = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        self.open = {name: torch.zeros_like(weight) for name, weight in self._weights.items()}
        self._scratch = {name: torch.empty_like(weight) for name, weight in self._weights.items()}
        self._last = False

    def epoch(self, left: int) -> None:
        self._last = left == 0

    def gradients(
        self, model: Network, objective: Objective, correction: ClientCorrection, x: Tensor, y: Tensor, draws: Generator
    ) -> Tensor | None:
        if not self._last:
            return super().gradients(model, objective, correction, x, y, draws)
        close, open_ = objective.closed_and_open(model, x, y, draws)
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        of_close = _gradients(close, parameters, retain_graph=True)
        of_open = _gradients(open_, parameters)
        self._add(self.close, of_close)
        self._add(self.open, of_open)
        for name, parameter in parameters.items():
            parameter.grad = of_close[name].add_(of_open[name], alpha=objective.open_weight)
        penalty = correction.penalty(x, y)
        if penalty is not None:
            penalty.backward()
        return close.detach() + objective.open_weight * open_.detach()

    @torch.no_grad()
    def _add(self, totals: Masks, gradients: Tensors) -> None:
        """Add |grad * w| (Eq. 4 and 5) or |grad| of one batch. Large tensors are allocated once, not per step.

        Frozen weights have no gradient: they matter to neither loss.
        """
        for name in gradients.keys() & totals.keys():
            total, scratch = totals[name], self._scratch[name]
            if self.measure == "grad*weight":
                torch.mul(gradients[name], self._weights[name], out=scratch)
            else:
                scratch.copy_(gradients[name])
            total += scratch.abs_()


def _gradients(loss: Tensor, parameters: Tensors, retain_graph: bool = False) -> dict[str, Tensor]:
    """Return a new gradient tensor for each parameter, zero where the loss does not depend on it."""
    found = torch.autograd.grad(
        loss, tuple(parameters.values()), retain_graph=retain_graph, allow_unused=True, materialize_grads=True
    )
    # The kernels of fedwild.models return gradients in another memory layout, which a fused optimiser would misread.
    return {name: gradient.contiguous() for name, gradient in zip(parameters, found, strict=True)}


def weight_names(graph: LayerGraph) -> tuple[str, ...]:
    """Return the weights that have masks: those of every conv and linear layer, including the head."""
    return tuple(f"{layer.name}.weight" for layer in graph.weighted)


def subnetwork_size(ratio: float, count: int) -> int:
    """Return how many of `count` weights a subnetwork keeps. Halves are rounded up."""
    # 0.7 * 45 is slightly less than 31.5 in floating point.
    return math.floor(ratio * count + 0.5 + 1e-9)


def top_mask(scores: Tensor, ratio: float) -> Tensor:
    """Return the mask of exactly the `ratio` largest scores of a module (Eq. 6 and 7); the first among equal ones."""
    flat = scores.detach().cpu().flatten().numpy()
    count = subnetwork_size(ratio, flat.size)
    if count == 0:
        return torch.zeros(scores.shape, dtype=torch.bool)
    least = np.partition(flat, flat.size - count)[flat.size - count]
    mask = flat > least
    mask[np.flatnonzero(flat == least)[: count - int(mask.sum())]] = True
    return torch.from_numpy(mask).view(scores.shape)


def neuron_shares(close: Tensor, open_: Tensor) -> Tensor:
    """Return the shares of each neuron's incoming weights that are close-only, open-only and shared: (3, neurons)."""
    parts = Parts.of(close.flatten(1), open_.flatten(1))
    return torch.stack([part.float().mean(dim=1) for part in parts[:3]])
