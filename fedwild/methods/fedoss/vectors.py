"""Lengths of activations, and changes measured in these lengths."""

from __future__ import annotations

import torch
from torch import Tensor

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
