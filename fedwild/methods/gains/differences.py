"""How much two models differ: in their embeddings of the same samples, and in their classifiers (Gains, Eq. 1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedwild.contract.initial import HEAD
from fedwild.models import Network
from fedwild.models.inference import INFERENCE_BATCH


@torch.inference_mode()
def embed_probes(model: Network, probes: Tensor) -> Tensor:
    """Return F (P, d): embeddings of the probes (P, *input_shape) in evaluation mode, on the CPU."""
    model.eval()
    device = next(model.parameters()).device
    return torch.cat([model.embed(x.to(device)) for x in probes.split(INFERENCE_BATCH)]).cpu()


def feature_difference(first: Tensor, second: Tensor) -> float:
    """Return Diff^F = 1 / (P d) sum_p sum_k |F_pk - F'_pk| of two embeddings (P, d)."""
    return float((first.double() - second.double()).abs().mean())


def classifier_difference(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Return Diff^C = (||W - W'||_F + ||b - b'||) / 2 of two heads. A head without bias counts as one with bias 0."""
    parts = [(first[name].double() - second[name].double()).norm() for name in HEAD if name in first]
    return float(sum(parts)) / 2
