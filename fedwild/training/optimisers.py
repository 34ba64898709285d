"""SGD and Adam: torch's fused steps without `torch.optim.Optimizer`.

That class imports torch's compiler when it is first used, which costs over a second and 70 MB in every process that
trains.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class Optimiser(Protocol):
    """Updates parameters from their gradients."""

    def step(self) -> None:
        """Take one step. Parameters without a gradient do not change."""
        ...


class SGD:
    """Stochastic gradient descent with momentum."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float, weight_decay: float) -> None:
        self.parameters = list(parameters)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.velocity: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        moving = [(i, p, p.grad) for i, p in enumerate(self.parameters) if p.grad is not None]
        velocities = [self.velocity.get(i) for i, _, _ in moving]
        if self.velocity:
            # A parameter that gets its first gradient later than the others starts with zero velocity.
            velocities = [
                torch.zeros_like(p) if v is None else v for (_, p, _), v in zip(moving, velocities, strict=True)
            ]
        sgd(
            [p for _, p, _ in moving],
            [gradient for _, _, gradient in moving],
            velocities,
            fused=True,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        if self.momentum:
            self.velocity |= {i: v for (i, _, _), v in zip(moving, velocities, strict=True) if v is not None}


class Adam:
    """Adam with an L2 penalty in the gradient."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, betas: tuple[float, float], weight_decay: float
    ) -> None:
        self.parameters = list(parameters)
        self.lr, self.betas, self.weight_decay = lr, betas, weight_decay
        self.means = [torch.zeros_like(p) for p in self.parameters]
        self.squares = [torch.zeros_like(p) for p in self.parameters]
        self.steps = [torch.zeros((), device=p.device) for p in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        moving = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        adam(
            [self.parameters[i] for i in moving],
            [gradient for p in self.parameters if (gradient := p.grad) is not None],
            [self.means[i] for i in moving],
            [self.squares[i] for i in moving],
            [],
            [self.steps[i] for i in moving],
            fused=True,
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
