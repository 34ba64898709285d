"""How far two models are apart: in what they make of the same samples, and in their classifiers (Gains, Eq. 1)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedwild.initial import HEAD
from fedwild.models import Network

PROBED_AT_ONCE = 256


@torch.inference_mode()
def features(model: Network, probes: Tensor) -> Tensor:
    """F (P, d): embeddings of the probes (P, *input_shape) in evaluation mode, on the CPU."""
    model.eval()
    device = next(model.parameters()).device
    return torch.cat([model.embed(x.to(device)) for x in probes.split(PROBED_AT_ONCE)]).cpu()


def feature_difference(first: Tensor, second: Tensor) -> float:
    """Diff^F = 1 / (P d) sum_p sum_k |F_pk - F'_pk| of features (P, d)."""
    return float((first.double() - second.double()).abs().mean())


def classifier_difference(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """Diff^C = (||W - W'||_F + ||b - b'||) / 2 of two heads; one without bias has a bias of zero."""
    parts = [(first[name].double() - second[name].double()).norm() for name in HEAD if name in first]
    return float(sum(parts)) / 2
