"""Which known samples lie near a decision boundary (FedOSS, section III.B.1, and the rules it is compared with).

Every rule gives a mask (n,) over a batch.
"""

from __future__ import annotations

import torch
from torch import Tensor


def agreement(answers: Tensor, y: Tensor) -> Tensor:
    """s: the share of clients' heads that classify a sample rightly (Eq. 1), (n,) of logits (heads, n, K)."""
    return (answers.argmax(2) == y).double().mean(0)


def informed_agreement(answers: Tensor, y: Tensor, held: Tensor) -> Tensor:
    """The same over the heads that can know: their clients hold the sample's class and at least one other.

    held (heads, K) tells which classes a head's client has; a head chooses among these only. Samples that fewer than
    two heads can judge count as agreed upon (1).
    """
    among_held = answers.masked_fill(~held.unsqueeze(1), -torch.inf)
    able = held[:, y] & (held.sum(1, keepdim=True) > 1)
    right = (among_held.argmax(2) == y) & able
    judges = able.sum(0)
    return torch.where(judges > 1, right.sum(0).double() / judges.clamp_min(1), 1.0)


def between(share: Tensor, low: float, high: float) -> Tensor:
    """low < s < high: neither at the class's centre (s = 1) nor outside of its cluster (s = 0)."""
    return (share > low) & (share < high)


def small_margin(logits: Tensor, y: Tensor, margin: float) -> Tensor:
    """Method B (Koltchinskii, Panchenko): |p_y - the largest other p| < margin, of logits (n, K)."""
    p = logits.softmax(1)
    if p.shape[1] < 2:
        return torch.zeros_like(y, dtype=torch.bool)
    own = p.gather(1, y.unsqueeze(1)).squeeze(1)
    other = p.scatter(1, y.unsqueeze(1), -1.0).amax(1)
    return (own - other).abs() < margin


def shaken(h: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Activations h (n, ...) moved by `strength` times their own length in a random direction, for Method A.

    Method A (BulletTrain: Hua et al., NeurIPS 2021) takes samples whose prediction a strong perturbation changes.
    """
    noise = torch.randn(h.shape, generator=generator).to(h.device)
    return h + scaled_to(noise, strength * lengths(h))


def lengths(h: Tensor) -> Tensor:
    """|h| of every sample (n,)."""
    return h.flatten(1).norm(dim=1)


def scaled_to(direction: Tensor, length: Tensor) -> Tensor:
    """Directions (n, ...) with the given lengths (n,); a direction of zero stays zero."""
    # Squares of tiny numbers would vanish.
    largest = direction.flatten(1).abs().amax(1).clamp_min(torch.finfo(direction.dtype).tiny)
    direction = direction / largest.view(-1, *[1] * (direction.dim() - 1))
    current = lengths(direction)
    factor = torch.where(current > 0, length / current, 0.0)
    return direction * factor.view(-1, *[1] * (direction.dim() - 1))
