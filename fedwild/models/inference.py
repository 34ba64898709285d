"""Running networks over many samples without training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from fedwild.models.network import Network

INFERENCE_BATCH = 256
"""Samples per forward pass. Fixed, since the bits of a result may depend on the size of batches."""


class Batched(Protocol):
    """Samples that can be read in batches of inputs and labels, in a fixed order."""

    def batches(self, batch_size: int, /) -> Iterable[tuple[Tensor, Tensor]]: ...


@torch.inference_mode()
def embeddings(model: Network, samples: Batched) -> Tensor:
    """Return the embeddings (n, d) of all samples, in order, in evaluation mode, on the CPU."""
    model.eval()
    device = model.head.weight.device
    parts = [model.embed(x.to(device)).cpu() for x, _ in samples.batches(INFERENCE_BATCH)]
    return torch.cat(parts) if parts else torch.empty(0, model.embedding_dim)
