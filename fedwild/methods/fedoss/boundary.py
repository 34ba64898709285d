"""Boundary sample recognition (section III.B.1): which known samples lie near a decision boundary.

One class per value of `method.boundary`. A rule returns a mask (n,) for a batch of activations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from fedwild.methods.fedoss.heads import Bank
from fedwild.methods.fedoss.inversion import perturb
from fedwild.methods.fedoss.settings import BoundarySettings
from fedwild.models import Network
from fedwild.openset.adversarial import frozen_model


class BoundaryRule(ABC):
    """Finds the samples of a batch that lie near a decision boundary."""

    def __init__(self, settings: BoundarySettings, cut: str, bank: Bank) -> None:
        self.settings, self.cut, self.bank = settings, cut, bank

    @abstractmethod
    def __call__(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
        """Return the mask (n,) of boundary samples for activations h (n, ...) at the cut and labels y (n,)."""

    def known_logits(self, model: Network, h: Tensor) -> Tensor:
        """Return the model's logits (n, K) over the known classes, without gradients."""
        with frozen_model(model), torch.no_grad():
            return model.after(h, self.cut)[:, : self.bank.held.shape[1]]


class HeadRule(BoundaryRule):
    """Selects samples with low < s < high, where s is the share of personal heads that classify them correctly.

    With s = 1 a sample lies in the centre of its class, with s = 0 outside its cluster.
    """

    def __call__(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
        if not self.bank.branches:
            return torch.zeros_like(y, dtype=torch.bool)
        return self.is_boundary(self.agreement(self.bank.logits(h), y))

    @abstractmethod
    def agreement(self, answers: Tensor, y: Tensor) -> Tensor:
        """Return s (n,) for logits of the heads (heads, n, K)."""

    def is_boundary(self, s: Tensor) -> Tensor:
        """Return low < s < high (n,)."""
        return (s > self.settings.low) & (s < self.settings.high)


class Agreement(HeadRule):
    """Eq. 1: s over all heads."""

    def agreement(self, answers: Tensor, y: Tensor) -> Tensor:
        return (answers.argmax(2) == y).double().mean(0)


class InformedAgreement(HeadRule):
    """s over the informed heads: those whose clients hold the sample's class and at least one other class.

    A head chooses among the classes that its client holds. Samples with fewer than two informed heads get s = 1.
    """

    def agreement(self, answers: Tensor, y: Tensor) -> Tensor:
        held = self.bank.held.to(answers.device)
        among_held = answers.masked_fill(~held.unsqueeze(1), -torch.inf)
        informed = held[:, y] & (held.sum(1, keepdim=True) > 1)
        correct = (among_held.argmax(2) == y) & informed
        count = informed.sum(0)
        return torch.where(count > 1, correct.sum(0).double() / count.clamp_min(1), 1.0)


class Perturbation(BoundaryRule):
    """Method A (BulletTrain: Hua et al., NeurIPS 2021): a strong random perturbation changes the prediction."""

    def __call__(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
        moved = perturb(h, self.settings.width, draws)
        return self.known_logits(model, h).argmax(1) != self.known_logits(model, moved).argmax(1)


class Margin(BoundaryRule):
    """Method B (Koltchinskii, Panchenko): |p_y - the largest other p| is below `width`."""

    def __call__(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
        return has_small_margin(self.known_logits(model, h), y, self.settings.width)


class AllSamples(BoundaryRule):
    """Selects every sample."""

    def __call__(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
        return torch.ones_like(y, dtype=torch.bool)


RULES: dict[str, type[BoundaryRule]] = {
    "agreement": Agreement,
    "informed": InformedAgreement,
    "perturbation": Perturbation,
    "margin": Margin,
    "all": AllSamples,
}
"""By value of `method.boundary`."""


def has_small_margin(logits: Tensor, y: Tensor, width: float) -> Tensor:
    """Return |p_y - the largest other p| < width (n,) for logits (n, K). A single class has no margin."""
    p = logits.softmax(1)
    if p.shape[1] < 2:
        return torch.zeros_like(y, dtype=torch.bool)
    own = p.gather(1, y.unsqueeze(1)).squeeze(1)
    other = p.scatter(1, y.unsqueeze(1), -1.0).amax(1)
    return (own - other).abs() < width
