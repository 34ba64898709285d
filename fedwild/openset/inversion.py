"""Inversion updating (FedOSS, section III.B.2): known samples pushed over their decision boundary, in feature space."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.models import Network
from fedwild.openset.adversarial import held_still
from fedwild.openset.boundary import lengths, scaled_to

Away = Literal["class", "known"]
Unit = Literal["gradient", "length"]
FARTHEST = 1e6
"""The largest displacement that is told: a raw gradient can move a sample that has almost no length."""


def invert(model: Network, h: Tensor, y: Tensor, cut: str, steps: int, size: float, unit: Unit, away: Away) -> Tensor:
    """h(T+1) = h(T) + size * gradient of L(f(h(T)), y), `steps` times (Eq. 2 and 3), of activations h (n, ...).

    Away from its own "class", L is the cross-entropy over the known classes, and a sample ends up in another class.
    Away from all that is "known", L is the free energy -log sum exp of the known logits: it ends up where no class is.
    Each sample climbs its own loss, whatever else is in the batch. With unit "length" the step is size * |h| in the
    gradient's direction: a sample that the model is sure of has almost no gradient, and would stay where it is.
    Parameters, gradients and batch statistics of the model do not change.
    """
    start, moved = lengths(h), h.detach().clone()
    known = model.head.out_features - 1
    with held_still(model):
        for _ in range(steps):
            moved.requires_grad_(True)
            logits = model.after(moved, cut)[:, :known]
            (gradient,) = torch.autograd.grad(climbed(logits, y, unit, away), moved)
            climb = gradient * size if unit == "gradient" else scaled_to(gradient, size * start)
            moved = moved.detach() + climb
    return moved


def climbed(logits: Tensor, y: Tensor, unit: Unit, away: Away) -> Tensor:
    """L of known logits (n, K), summed over samples."""
    if away == "known":
        return -logits.logsumexp(1).sum()
    if unit == "gradient" or logits.shape[1] == 1:
        return F.cross_entropy(logits, y, reduction="sum")
    # Cross-entropy is a rising function of this, so the direction is the same, and it never fades.
    others = logits.scatter(1, y.unsqueeze(1), -torch.inf).logsumexp(1)
    return (others - logits.gather(1, y.unsqueeze(1)).squeeze(1)).sum()


def displacement(h: Tensor, moved: Tensor) -> Tensor:
    """How far each sample went, in units of its own length (n,); 0 for a sample that has none."""
    start = lengths(h)
    return torch.where(start > 0, lengths(moved - h) / start, 0.0).clamp_max(FARTHEST)
