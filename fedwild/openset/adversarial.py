"""Adversarial outlier enhancement (FedOV, section 3.5): outliers moved to where the model takes them for known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.models import Network, has_batch_norm


def enhance(model: Network, outliers: Tensor, steps: int, step_size: float) -> Tensor:
    """x'' = x' + step_size * sign(grad CE(f(x'), K)), `steps` times: away from "unknown", the model's last output.

    `outliers` x' (n, *shape) are never changed, nor are the model's parameters, gradients and batch statistics.
    """
    moved = outliers.detach().clone()
    unknown = torch.full((len(moved),), model.head.out_features - 1, device=moved.device)
    with held_still(model):
        for _ in range(steps):
            moved.requires_grad_(True)
            # Only the sign counts, so the sum will do; a mean could shrink a gradient to nothing.
            loss = F.cross_entropy(model(moved), unknown, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, moved)
            # Like the gradient, whose memory order the network likes best; not into it, its elements may share memory.
            moved = gradient.sign().mul_(step_size).add_(moved.detach())
    return moved


@contextmanager
def held_still(model: Network) -> Iterator[None]:
    """No gradients for parameters; batch-norm by its running statistics, which outliers alone must not shift."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    learning = [part for part in model.modules() if part.training] if has_batch_norm(model) else []
    for parameter in trainable:
        parameter.requires_grad = False
    for part in learning:
        part.training = False
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter in trainable:
            parameter.requires_grad = True
        for part in learning:
            part.training = True
