"""The terms of PROSER and FedOV in NumPy for a dense network, and toy batches for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedwild.models import Network, build

Real = NDArray[np.float64]

SHAPE = (1, 6, 6)
CLASSES = 3


def dense(classes: int = CLASSES) -> Network:
    """Return a network 36 - 5 - 4 - (K + 1) in float64, with weights large enough for ReLU to matter in mixtures."""
    torch.manual_seed(0)
    model = build("mlp", SHAPE, classes + 1, params={"hidden": [5, 4]}).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def images(n: int = 8, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.rand(n, *shape, generator=seeded(1), dtype=torch.float64)


def labels(n: int = 8, classes: int = CLASSES) -> Tensor:
    return torch.arange(n) * 2 % classes


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def array(x: Tensor) -> Any:
    return x.detach().numpy().astype(np.float64)


def layer(model: Network, name: str, h: Real) -> Real:
    state = model.state_dict()
    return h @ array(state[f"{name}.weight"]).T + array(state[f"{name}.bias"])


def first(model: Network, x: Tensor) -> Real:
    """Return the activations after fc1."""
    return np.maximum(layer(model, "fc1.fc", array(x).reshape(len(x), -1)), 0)


def second(model: Network, h: Real) -> Real:
    """Return the activations after fc2, given those after fc1."""
    return np.maximum(layer(model, "fc2.fc", h), 0)


def head(model: Network, h: Real) -> Real:
    return layer(model, "head", h)


def logits(model: Network, x: Tensor) -> Real:
    return head(model, second(model, first(model, x)))


def cross_entropies(z: Real, target: NDArray[np.int64]) -> Real:
    """Return -log softmax of the target's entry for each row."""
    peak = z.max(1, keepdims=True)
    log_total = np.log(np.exp(z - peak).sum(1)) + peak[:, 0]
    result: Real = log_total - z[np.arange(len(z)), target]
    return result


def unknown(z: Real) -> float:
    """Return the mean of CE(z, K), where K is the last output."""
    return float(cross_entropies(z, np.full(len(z), z.shape[1] - 1)).mean())


@dataclass(frozen=True)
class Mixing:
    """lambda, the partners, and which pairs differ in class, drawn like the objective's."""

    lam: float
    partner: NDArray[np.int64]
    differ: NDArray[np.bool_]

    def mix(self, h: Real) -> Real:
        return self.lam * h + (1 - self.lam) * h[self.partner]


def draw(y: Tensor, generator: torch.Generator) -> Mixing:
    lam = torch.rand((), generator=generator).item()
    partner = torch.randperm(len(y), generator=generator).numpy()
    own = y.numpy()
    return Mixing(lam, partner, np.array([own[i] != own[j] for i, j in enumerate(partner)]))


def known_term(model: Network, x: Tensor, y: Tensor) -> float:
    return float(cross_entropies(logits(model, x), y.numpy()).mean())


def dummy_term(model: Network, x: Tensor, y: Tensor) -> float:
    """Return the dummy term with the true class's output removed."""
    rows = logits(model, x)
    return unknown(np.stack([np.delete(row, label) for row, label in zip(rows, y.tolist(), strict=True)]))


def mix_term(model: Network, x: Tensor, mixing: Mixing) -> float:
    if not mixing.differ.any():
        return 0.0
    mixed = mixing.mix(first(model, x))[mixing.differ]
    return unknown(head(model, second(model, mixed)))


def outlier_term(model: Network, x: Tensor) -> float:
    return unknown(logits(model, x))
