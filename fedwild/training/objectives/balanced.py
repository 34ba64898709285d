"""Cross-entropy that takes a client's label shares into account.

Ren et al.: Balanced meta-softmax for long-tailed visual recognition. NeurIPS 2020; for clients with different labels:
Zhang et al.: Federated learning with label distribution skew via logits calibration. ICML 2022.
"""

from __future__ import annotations

import copy

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


class Balanceable(Objective):
    """An objective whose cross-entropy may take the client's label shares into account."""

    shares: Tensor | None = None
    """The client's log label shares (K,), if they are taken into account."""

    def is_balanced(self) -> bool:
        """Return whether label shares are taken into account."""
        return bool(self.params.balanced)

    def on(self, samples: Samples, model: Network) -> Objective:
        if not self.is_balanced():
            return self
        fitted = copy.copy(self)
        fitted.shares = log_shares(samples.y, model.head.out_features - self.extra_outputs)
        return fitted

    def cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits (n, outputs) with labels y (n,)."""
        return F.cross_entropy(logits if self.shares is None else with_shares(logits, self.shares), y)


@OBJECTIVES.add("balanced")
class Balanced(Balanceable):
    """Cross-entropy with the client's log label shares added to the logits, so that rare classes are not forgotten."""

    def is_balanced(self) -> bool:
        return True

    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        return self.cross_entropy(model(x), y)
