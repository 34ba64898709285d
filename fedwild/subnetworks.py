"""Which weights of a network matter to which loss: FedPD's local parameter disentanglement (section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedwild.corrections.base import Steering
from fedwild.models import Network
from fedwild.models.graph import LayerGraph
from fedwild.objectives import Objective
from fedwild.training import Descent

Measure = Literal["grad*weight", "grad"]
Masks = dict[str, Tensor]
"""By the name of a weight, which of its elements belong to a subnetwork: bool, of the weight's shape."""


class Parts(NamedTuple):
    """What two subnetworks make of a weight: four masks that do not overlap and leave nothing out."""

    close: Tensor
    """Only in the closed-set subnetwork (Eq. 8)."""
    open: Tensor
    """Only in the open-set subnetwork (Eq. 9)."""
    share: Tensor
    """In both (Eq. 10)."""
    rest: Tensor
    """In neither, which the paper leaves open."""

    @classmethod
    def of(cls, close: Tensor, open_: Tensor) -> Parts:
        return cls(close & ~open_, open_ & ~close, open_ & close, ~(open_ | close))


class Importance(Descent):
    """Adds up, over the last epoch, how much each conv or linear weight matters to L_close and to L_open.

    Both losses come from one pass through the network and have a backward pass each; the step is taken along
    grad L_close + open_weight * grad L_open, as it would be without looking.
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
        self, model: Network, objective: Objective, steering: Steering, x: Tensor, y: Tensor, draws: torch.Generator
    ) -> Tensor:
        if not self._last:
            return super().gradients(model, objective, steering, x, y, draws)
        close, open_ = objective.closed_and_open(model, x, y, draws)
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        of_close = _gradients(close, parameters, retain_graph=True)
        of_open = _gradients(open_, parameters)
        self._count(self.close, of_close)
        self._count(self.open, of_open)
        for name, parameter in parameters.items():
            parameter.grad = of_close[name].add_(of_open[name], alpha=objective.open_weight)
        penalty = steering.penalty(x, y)
        if penalty is not None:
            penalty.backward()
        return close.detach() + objective.open_weight * open_.detach()

    @torch.no_grad()
    def _count(self, totals: Masks, gradients: Mapping[str, Tensor]) -> None:
        """|grad * w| (Eq. 4 and 5), or |grad|, of one batch. Large tensors are made once, not in every step."""
        for name, total in totals.items():
            scratch = self._scratch[name]
            if self.measure == "grad*weight":
                torch.mul(gradients[name], self._weights[name], out=scratch)
            else:
                scratch.copy_(gradients[name])
            total += scratch.abs_()


def _gradients(loss: Tensor, parameters: Mapping[str, Tensor], retain_graph: bool = False) -> dict[str, Tensor]:
    """A new gradient tensor for each parameter; zeros where the loss does not depend on it."""
    found = torch.autograd.grad(
        loss, tuple(parameters.values()), retain_graph=retain_graph, allow_unused=True, materialize_grads=True
    )
    # Our own kernels give gradients in another memory order, which a fused optimiser would take for the weight's.
    return {name: gradient.contiguous() for name, gradient in zip(parameters, found, strict=True)}


def weight_names(graph: LayerGraph) -> tuple[str, ...]:
    """The weights that masks are for: of every conv and linear layer, the head among them."""
    return tuple(f"{layer.name}.weight" for layer in graph.weighted)


def kept(ratio: float, count: int) -> int:
    """How many of `count` weights a subnetwork keeps; halves are rounded up."""
    # 0.7 * 45 is a little less than 31.5.
    return math.floor(ratio * count + 0.5 + 1e-9)


def top(scores: Tensor, ratio: float) -> Tensor:
    """The mask of exactly the `ratio` largest scores of a module (Eq. 6 and 7); of equal ones, the first."""
    flat = scores.detach().cpu().flatten().numpy()
    count = kept(ratio, flat.size)
    if count == 0:
        return torch.zeros(scores.shape, dtype=torch.bool)
    least = np.partition(flat, flat.size - count)[flat.size - count]
    mask = flat > least
    mask[np.flatnonzero(flat == least)[: count - int(mask.sum())]] = True
    return torch.from_numpy(mask).view(scores.shape)


def packed(masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Masks as they travel: eight elements in a byte."""
    return {name: torch.from_numpy(np.packbits(mask.numpy())) for name, mask in masks.items()}


def unpacked(bits: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Masks:
    """The masks of packed bits, in the shapes of the weights of that name."""
    return {
        name: torch.from_numpy(np.unpackbits(code.numpy(), count=like[name].numel())).bool().view(like[name].shape)
        for name, code in bits.items()
    }


def packed_spec(like: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """Names, shapes and types of packed masks for weights."""
    return {name: torch.empty(-(-like[name].numel() // 8), dtype=torch.uint8, device="meta") for name in names}


def shares(close: Tensor, open_: Tensor) -> Tensor:
    """Of the weights that lead to each neuron, the shares that are close-only, open-only and shared: (3, neurons)."""
    parts = Parts.of(close.flatten(1), open_.flatten(1))
    return torch.stack([part.float().mean(dim=1) for part in parts[:3]])
