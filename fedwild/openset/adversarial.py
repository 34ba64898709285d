"""Adversarial outlier enhancement (FedOV, section 3.5): moves outliers to where the model considers them known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.data.samples import Normalisation
from fedwild.models import Network


def enhance(
    model: Network, outliers: Tensor, steps: int, step_size: float, normalisation: Normalisation | None = None
) -> Tensor:
    """Return x'' = x' + step_size * sign(grad CE(f(x'), K)), applied `steps` times: away from the unknown output K.

    The step is in units of pixels, also if the inputs are normalised. The outliers x' (n, *shape), the model's
    parameters, gradients and batch statistics do not change.
    """
    step: float | Tensor = step_size if normalisation is None else step_size / normalisation.std.to(outliers)
    moved = outliers.detach().clone()
    unknown = torch.full((len(moved),), model.head.out_features - 1, device=moved.device)
    with frozen_model(model):
        for _ in range(steps):
            moved.requires_grad_(True)
            # Only the sign counts, and a mean could round a small gradient to zero.
            loss = F.cross_entropy(model(moved), unknown, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, moved)
            # In the gradient's memory layout, which suits the network, but not in place: its elements may share memory.
            moved = gradient.sign().mul_(step).add_(moved.detach())
    return moved


@contextmanager
def frozen_model(model: Network) -> Iterator[None]:
    """Compute no gradients for parameters, and put the model into evaluation mode: no dropout, fixed statistics."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    learning = [part for part in model.modules() if part.training]
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
