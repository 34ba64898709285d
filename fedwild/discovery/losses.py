"""Losses of novel-class learning (GAL, stage U)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

TINY = 1e-7
AGREEING = 5
"""How many of a sample's largest features must be the same ones, for a pair to count as one class (AutoNovel)."""


def semantic_weighted(z: Tensor, prototypes: Tensor, temperature: float, normalised: bool = True) -> Tensor:
    """SWL, Eq. 9: the distance of each sample to every prototype, weighted by how like the two are.

    z (n, d), prototypes (C, d). With `normalised` the likeness is the cosine: at the paper's temperature of 0.07, dot
    products of raw features make the softmax a plain maximum.
    """
    likeness = F.normalize(z) @ F.normalize(prototypes).T if normalised else z @ prototypes.T
    return ((likeness / temperature).softmax(dim=1) * torch.cdist(z, prototypes)).sum(dim=1).mean()


def pairwise_bce(z: Tensor, logits: Tensor, top: int = AGREEING) -> Tensor:
    """Eq. 11 (AutoNovel): two samples should get the same class if the sets of their largest features agree.

    z (n, d), logits of the novel classes (n, C); the mean over all n^2 pairs.
    """
    largest = z.detach().topk(min(top, z.shape[1]), dim=1).indices.sort(dim=1).values
    same = (largest[:, None] == largest).all(dim=2).to(z.dtype)
    p = logits.softmax(dim=1)
    agree = p @ p.T
    return -(same * (agree + TINY).log() + (1 - same) * (1 - agree + TINY).log()).mean()


def feature_distance(z: Tensor, before: Tensor) -> Tensor:
    """iNCD's distillation: the distance of the batches' feature matrices (n, d), each of length 1 as a whole."""
    return (z / z.norm().clamp_min(TINY) - before / before.norm().clamp_min(TINY)).norm()


def replay(head: Tensor, known: int, generator: torch.Generator, per_class: int = 2, noise: float = 0.01) -> Tensor:
    """iNCD's replay: cross-entropy of features drawn around the first `known` rows of the head (C, d)."""
    rows = head[:known].detach()
    spread = noise * (torch.pdist(rows).min() if known > 1 else rows.norm())
    drawn = torch.randn(known * per_class, rows.shape[1], generator=generator).to(rows)
    features = rows.repeat_interleave(per_class, dim=0) + spread * drawn
    truth = torch.arange(known, device=rows.device).repeat_interleave(per_class)
    return F.cross_entropy(F.linear(features, head), truth)
