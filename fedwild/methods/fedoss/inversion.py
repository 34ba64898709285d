"""Inversion updating (section III.B.2): push known samples across their decision boundary, in feature space."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.methods.fedoss.settings import Away, PushSettings, StepUnit
from fedwild.methods.fedoss.vectors import lengths, rescale
from fedwild.models import Network
from fedwild.openset.adversarial import held_still


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
    with held_still(model):
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
