"""Discrete unknown sample synthesis (DUSS, section III.B): recognise boundary samples, and push them across.

Recognition (III.B.1) has one class per value of `method.boundary`. Inversion (III.B.2) works in feature space.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from fedwild.methods.fedoss.heads import Bank
from fedwild.methods.fedoss.settings import Away, BoundarySettings, PushSettings, StepUnit
from fedwild.models import Network
from fedwild.openset.adversarial import frozen_model


class BoundaryRule(ABC):
    """Finds the samples of a batch that lie near a decision boundary."""

    def __init__(self, settings: BoundarySettings, cut: str, bank: Bank) -> None:
        self.settings, self.cut, self.bank = settings, cut, bank

    @abstractmethod
    def __call__(self, model: Network, h: Tensor, y: Tensor, draws: Generator) -> Tensor:
        """Return the mask (n,) of boundary samples for activations h (n, ...) at the cut and labels y (n,)."""

    def known_logits(self, model: Network, h: Tensor) -> Tensor:
        """Return the model's logits (n, K) over the known classes, without gradients."""
        with frozen_model(model), torch.no_grad():
            return model.after(h, self.cut)[:, : self.bank.held.shape[1]]


class HeadRule(BoundaryRule):
    """Selects samples with low < s < high, where s is the share of personal heads that classify them correctly.

    With s = 1 a sample lies in the centre of its class, with s = 0 outside its cluster.
    """

    def __call__(self, model: Network, h: Tensor, y: Tensor, draws: Generator) -> Tensor:
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

    def __call__(self, model: Network, h: Tensor, y: Tensor, draws: Generator) -> Tensor:
        moved = perturb(h, self.settings.width, draws)
        return self.known_logits(model, h).argmax(1) != self.known_logits(model, moved).argmax(1)


class Margin(BoundaryRule):
    """Method B (Koltchinskii, Panchenko): |p_y - the largest other p| is below `width`."""

    def __call__(self, model: Network, h: Tensor, y: Tensor, draws: Generator) -> Tensor:
        return has_small_margin(self.known_logits(model, h), y, self.settings.width)


class AllSamples(BoundaryRule):
    """Selects every sample."""

    def __call__(self, model: Network, h: Tensor, y: Tensor, draws: Generator) -> Tensor:
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


def invert(model: Network, h: Tensor, y: Tensor, cut: str, settings: PushSettings) -> Tensor:
    """Return h(T), where h(t+1) = h(t) + step_size * gradient of L(f(h(t)), y) (Eq. 2 and 3), for h (n, ...).

    With away = "class", L is the cross-entropy over all K + 1 outputs, and samples end in another class. With away =
    "known", L is the free energy -log sum exp of the known logits, and samples end where no class is. L is summed over
    samples, so each sample moves independently of the batch. With step_unit = "length", a step is step_size * |h| in
    the direction of the gradient, because a sample of which the model is certain has almost no gradient. Parameters,
    their gradients and batch statistics of the model do not change.
    """
    start, moved = lengths(h), h.detach().clone()
    outputs = model.head.out_features - (settings.away == "known")
    size, unit = settings.step_size, settings.step_unit
    with frozen_model(model):
        for _ in range(settings.steps):
            moved.requires_grad_(True)
            logits = model.after(moved, cut)[:, :outputs]
            (gradient,) = torch.autograd.grad(inversion_loss(logits, y, unit, settings.away), moved)
            step = gradient * size if unit == "gradient" else rescale(gradient, size * start)
            moved = moved.detach() + step
    return moved


def is_called_unknown(model: Network, h: Tensor, cut: str) -> Tensor:
    """Return whether the largest of the K + 1 outputs is the last one (n,), for activations h (n, ...) at the cut."""
    with frozen_model(model), torch.no_grad():
        answers = model.after(h, cut).argmax(1)
    return answers == model.head.out_features - 1


def inversion_loss(logits: Tensor, y: Tensor, unit: StepUnit, away: Away) -> Tensor:
    """Return L for logits (n, outputs), summed over samples."""
    if away == "known":
        return -logits.logsumexp(1).sum()
    if unit == "gradient" or logits.shape[1] == 1:
        return F.cross_entropy(logits, y, reduction="sum")
    # Cross-entropy is an increasing function of this, so the direction is the same, and the gradient never vanishes.
    others = logits.scatter(1, y.unsqueeze(1), -torch.inf).logsumexp(1)
    return (others - logits.gather(1, y.unsqueeze(1)).squeeze(1)).sum()


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


def perturb(h: Tensor, strength: float, generator: Generator) -> Tensor:
    """Return activations h (n, ...) moved by `strength` times their own length in a random direction."""
    noise = torch.randn(h.shape, generator=generator).to(h.device)
    return h + rescale(noise, strength * lengths(h))


def displacement(h: Tensor, moved: Tensor) -> Tensor:
    """Return the distance from h to `moved` in units of |h| (n,); 0 for a sample of length 0."""
    start = lengths(h)
    return torch.where(start > 0, lengths(moved - h) / start, 0.0).clamp_max(MAX_DISPLACEMENT)
