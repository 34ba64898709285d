"""Losses of novel-class learning (GAL, stage U)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

EPSILON = 1e-7
TOP_FEATURES = 5
"""Two samples count as one class if their largest features are the same; so many features are compared (AutoNovel)."""


def semantic_weighted(z: Tensor, prototypes: Tensor, temperature: float, normalised: bool = True) -> Tensor:
    """Return SWL, Eq. 9: the mean distance of samples to all prototypes, weighted by their similarity.

    z (n, d), prototypes (C, d). With `normalised`, similarities are cosines. At the paper's temperature of 0.07, a
    softmax of dot products of raw features is a plain maximum.
    """
    similarity = F.normalize(z) @ F.normalize(prototypes).T if normalised else z @ prototypes.T
    return ((similarity / temperature).softmax(dim=1) * torch.cdist(z, prototypes)).sum(dim=1).mean()


def pairwise_bce(z: Tensor, logits: Tensor, top: int = TOP_FEATURES) -> Tensor:
    """Return Eq. 11 (AutoNovel): samples with the same set of largest features should get the same class.

    z (n, d), logits of the novel classes (n, C). The mean is over all n^2 pairs.
    """
    largest = z.detach().topk(min(top, z.shape[1]), dim=1).indices.sort(dim=1).values
    same = (largest[:, None] == largest).all(dim=2).to(z.dtype)
    p = logits.softmax(dim=1)
    agree = p @ p.T
    return -(same * (agree + EPSILON).log() + (1 - same) * (1 - agree + EPSILON).log()).mean()


def feature_distance(z: Tensor, before: Tensor) -> Tensor:
    """Return iNCD's distillation: the distance of two feature matrices (n, d), each scaled to norm 1 as a whole."""
    return (z / z.norm().clamp_min(EPSILON) - before / before.norm().clamp_min(EPSILON)).norm()


def replay(head: Tensor, known: int, generator: torch.Generator, per_class: int = 2, noise: float = 0.01) -> Tensor:
    """Return iNCD's replay: the cross-entropy of features drawn around the first `known` rows of the head (C, d)."""
    rows = head[:known].detach()
    spread = noise * (torch.pdist(rows).min() if known > 1 else rows.norm())
    drawn = torch.randn(known * per_class, rows.shape[1], generator=generator).to(rows)
    features = rows.repeat_interleave(per_class, dim=0) + spread * drawn
    truth = torch.arange(known, device=rows.device).repeat_interleave(per_class)
    return F.cross_entropy(F.linear(features, head), truth)
