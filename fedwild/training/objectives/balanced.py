"""Cross-entropy that takes a client's label shares into account.

Ren et al.: Balanced meta-softmax for long-tailed visual recognition. NeurIPS 2020; for clients with different labels:
Zhang et al.: Federated learning with label distribution skew via logits calibration. ICML 2022.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.data.samples import Samples
from fedwild.models import Network
from fedwild.training.objectives.base import OBJECTIVES, Objective


def log_shares(y: Tensor, classes: int) -> Tensor:
    """Return log(K * (n_k + 1) / (n + K)) for every class (K,): 0 if all classes are equally frequent."""
    counts = torch.bincount(y, minlength=classes).float()
    return (classes * (counts + 1) / (counts.sum() + classes)).log()


def with_shares(logits: Tensor, shares: Tensor) -> Tensor:
    """Return logits (n, K) or (n, K + 1) plus log shares (K,); nothing is added to an unknown output."""
    return logits + F.pad(shares, (0, logits.shape[1] - len(shares))).to(logits.device)


class HasShares(Protocol):
    """An objective that knows its client's log label shares."""

    extra_outputs: ClassVar[int]
    shares: Tensor | None


S = TypeVar("S", bound=HasShares)


def fit_shares(objective: S, samples: Samples, model: Network) -> S:
    """Return a copy of the objective with the label shares of these samples."""
    fitted = copy.copy(objective)
    fitted.shares = log_shares(samples.y, model.head.out_features - objective.extra_outputs)
    return fitted


@OBJECTIVES.add("balanced")
class Balanced(Objective):
    """Cross-entropy with the client's log label shares added to the logits, so that rare classes are not forgotten."""

    shares: Tensor | None = None

    def on(self, samples: Samples, model: Network) -> Objective:
        return fit_shares(self, samples, model)

    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        assert self.shares is not None
        return F.cross_entropy(with_shares(model(x), self.shares), y)
