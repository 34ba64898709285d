"""Inversion updating (section III.B.2): push known samples across their decision boundary, in feature space."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.methods.fedoss.settings import Away, PushSettings, StepUnit
from fedwild.models import Network
from fedwild.openset.adversarial import frozen_model


def invert(model: Network, h: Tensor, y: Tensor, cut: str, settings: PushSettings) -> Tensor:
    """Return h(T), where h(t+1) = h(t) + step_size * gradient of L(f(h(t)), y) (Eq. 2 and 3), for h (n, ...).

    With away = "class", L is the cross-entropy over the known classes, and samples end in another class. With away =
    "known", L is the free energy -log sum exp of the known logits, and samples end where no class is. L is summed over
    samples, so each sample moves independently of the batch. With step_unit = "length", a step is step_size * |h| in
    the direction of the gradient, because a sample of which the model is certain has almost no gradient. Parameters,
    their gradients and batch statistics of the model do not change.
    """
    start, moved = lengths(h), h.detach().clone()
    known = model.head.out_features - 1
    size, unit = settings.step_size, settings.step_unit
    with frozen_model(model):
        for _ in range(settings.steps):
            moved.requires_grad_(True)
            logits = model.after(moved, cut)[:, :known]
            (gradient,) = torch.autograd.grad(inversion_loss(logits, y, unit, settings.away), moved)
            step = gradient * size if unit == "gradient" else rescale(gradient, size * start)
            moved = moved.detach() + step
    return moved


def inversion_loss(logits: Tensor, y: Tensor, unit: StepUnit, away: Away) -> Tensor:
    """Return L for known logits (n, K), summed over samples."""
    if away == "known":
        return -logits.logsumexp(1).sum()
    if unit == "gradient" or logits.shape[1] == 1:
        return F.cross_entropy(logits, y, reduction="sum")
    # Cross-entropy is an increasing function of this, so the direction is the same, and the gradient never vanishes.
    others = logits.scatter(1, y.unsqueeze(1), -torch.inf).logsumexp(1)
    return (others - logits.gather(1, y.unsqueeze(1)).squeeze(1)).sum()


MAX_DISPLACEMENT = 1e6
"""The largest displacement that is reported. A raw gradient can move a sample of almost no length very far."""


def lengths(h: Tensor) -> Tensor:
    """Return the length |h| of every sample (n,)."""
    return h.flatten(1).norm(dim=1)


def rescale(direction: Tensor, length: Tensor) -> Tensor:
    """Return directions (n, ...) scaled to the given lengths (n,). A zero direction stays zero."""
    # Divide by the largest element first, because squares of tiny numbers underflow.
    largest = direction.flatten(1).abs().amax(1).clamp_min(torch.finfo(direction.dtype).tiny)
    direction = direction / largest.view(-1, *[1] * (direction.dim() - 1))
    current = lengths(direction)
    factor = torch.where(current > 0, length / current, 0.0)
    return direction * factor.view(-1, *[1] * (direction.dim() - 1))


def perturb(h: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Return activations h (n, ...) moved by `strength` times their own length in a random direction."""
    noise = torch.randn(h.shape, generator=generator).to(h.device)
    return h + rescale(noise, strength * lengths(h))


def displacement(h: Tensor, moved: Tensor) -> Tensor:
    """Return the distance from h to `moved` in units of |h| (n,); 0 for a sample of length 0."""
    start = lengths(h)
    return torch.where(start > 0, lengths(moved - h) / start, 0.0).clamp_max(MAX_DISPLACEMENT)
