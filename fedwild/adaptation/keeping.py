"""The anti-forgetting term of source clients (Gains, Eq. 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedwild.corrections.base import Groups, Steering
from fedwild.initial import HEAD
from fedwild.models import Network


class Keeping(Steering):
    """Adds the gradient of lambda ||W - W_n(0,0)||^2, 2 lambda (W - W_n(0,0)), to what another correction does.

    Rows of the head that the anchor's owner had not learnt (`new_rows`) are free.
    """

    def __init__(
        self, steering: Steering, model: Network, anchor: Mapping[str, Tensor], strength: float, new_rows: Sequence[int]
    ) -> None:
        self.steering, self.strength = steering, strength
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.parameters: list[Tensor] = list(named.values())
        self.anchors = [anchor[name].to(parameter.device) for name, parameter in named.items()]
        self.heads = [place for place, name in enumerate(named) if name in HEAD]
        self.new_rows = list(new_rows)

    def penalty(self, x: Tensor, y: Tensor) -> Tensor | None:
        return self.steering.penalty(x, y)

    @torch.no_grad()
    def bend(self) -> None:
        self.steering.bend()
        drift = torch._foreach_sub(self.parameters, self.anchors)
        for place in self.heads:
            drift[place][self.new_rows] = 0.0
        for parameter, change in zip(self.parameters, drift, strict=True):
            # The penalty reaches every weight, also one that this batch's loss does not depend on.
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad.add_(change, alpha=2 * self.strength)

    def up(self, steps: int, lr: float) -> Groups:
        return self.steering.up(steps, lr)
