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
            loss = F.cross_entropy(logits, y, reduction="sum") if away == "class" else -logits.logsumexp(1).sum()
            (gradient,) = torch.autograd.grad(loss, moved)
            climb = gradient * size if unit == "gradient" else scaled_to(gradient, size * start)
            moved = moved.detach() + climb
    return moved


def displacement(h: Tensor, moved: Tensor) -> Tensor:
    """How far each sample went, in units of its own length (n,)."""
    return lengths(moved - h) / lengths(h).clamp_min(torch.finfo(h.dtype).tiny)
