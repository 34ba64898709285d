"""Random features for tests."""

from __future__ import annotations

import torch


def features(n: int, dims: int, seed: int) -> torch.Tensor:
    """Correlated, off-centre, with directions that never vary, as dead neurons are."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(dims, dims, generator=generator, dtype=torch.float64)
    mix[:, : dims // 3] = 0.0
    return torch.randn(n, dims, generator=generator, dtype=torch.float64) @ mix + 7.0
