"""Training with virtual unknown samples: Eq. 11 to 13."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.methods.fedoss.inversion import displacement
from fedwild.methods.fedoss.layout import Grid
from fedwild.methods.fedoss.personal import PersonalTraining
from fedwild.models import Network
from fedwild.statistics import Moments, merge_by_class, moments_by_class
from fedwild.training.objectives.balanced import with_shares
from fedwild.training.objectives.proser import mask_class

Recognise = Callable[[Network, Tensor, Tensor, torch.Generator], Tensor]
"""(model, activations h, labels y, random generator) -> mask (n,) of boundary samples."""
Push = Callable[[Network, Tensor, Tensor], Tensor]
"""(model, h, y) -> activations (n, ...) pushed across the boundary."""
Sample = Callable[[], tuple[Tensor, Tensor]]
"""() -> activations (n, ...) drawn from Gaussians, and the class of each Gaussian (n,)."""


class Virtual(NamedTuple):
    """A batch of virtual unknown samples."""

    h: Tensor
    """(n, ...) activations at the cut."""
    near: Tensor
    """(n,) the known class near which each sample lies."""
    weight: float
    """Weight of their mean loss."""


class Synthesis(PersonalTraining):
    """Synthesises virtual unknown samples from each batch and trains the network to answer "unknown" to them."""

    def __init__(
        self,
        personal: PersonalTraining,
        recognise: Recognise,
        push: Push,
        sample: Sample | None,
        weights: tuple[float, float],
        masked: bool,
        tally: Tally,
    ) -> None:
        super().__init__(personal.cut, personal.head, personal.optimiser, personal.log_prior)
        self.recognise, self.push, self.sample = recognise, push, sample
        self.weights, self.masked, self.tally = weights, masked, tally
        self.is_last_epoch = False

    def epoch(self, left: int) -> None:
        self.is_last_epoch = left == 0

    def loss(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
        virtual = [batch for batch in self.virtual(model, h.detach(), y, draws) if len(batch.near) and batch.weight]
        # One pass for all batches: it is cheapest, and batch-norm sees them together.
        logits = model.after(torch.cat([h, *(batch.h for batch in virtual)]), self.cut)
        known, *rest = logits.split([len(y), *(len(batch.near) for batch in virtual)])
        # Eq. 12, over K + 1 outputs. The unknown output has no label share.
        loss = F.cross_entropy(with_shares(known, self.log_prior), y)
        for batch, answers in zip(virtual, rest, strict=True):
            loss = loss + batch.weight * self.unknown_loss(answers, batch.near)
        return loss

    def unknown_loss(self, logits: Tensor, near: Tensor) -> Tensor:
        """Return CE(f(x) without the class `near`, K + 1), or CE(f(x), K + 1) if nothing is masked (Eq. 13)."""
        target = torch.full_like(near, logits.shape[1] - 1)
        return F.cross_entropy(mask_class(logits, near) if self.masked else logits, target)

    def virtual(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> list[Virtual]:
        """Return the samples of DUSS and FOSS for known activations h (n, ...)."""
        is_boundary = self.recognise(model, h, y, draws)
        start, labels = h[is_boundary], y[is_boundary]
        pushed = self.push(model, start, labels) if len(labels) else start
        if self.is_last_epoch:
            self.tally.add(len(y), start, pushed, labels)
        duss, foss = self.weights
        batches = [Virtual(pushed, labels, duss)]
        if self.sample is not None and foss:
            batches.append(Virtual(*self.sample(), foss))
        return batches


MAX_ROWS = 4096
"""Features beyond this number are merged into the moments."""


@dataclass
class Tally:
    """Counts of the last local epoch."""

    grid: Grid
    samples: int = 0
    boundary: int = 0
    displacement: float = 0.0
    """Sum over boundary samples."""
    merged: dict[int, Moments] = field(default_factory=dict)
    waiting: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Features (n, D) and labels (n,) that are not merged yet."""

    def add(self, samples: int, start: Tensor, pushed: Tensor, labels: Tensor) -> None:
        """Add a batch of `samples` samples, of which those with activations `start` (n, ...) were pushed."""
        self.samples += samples
        self.boundary += len(labels)
        self.displacement += float(displacement(start, pushed).sum())
        self.waiting.append((self.grid.to_vectors(pushed).cpu(), labels.cpu()))
        if sum(len(y) for _, y in self.waiting) > MAX_ROWS:
            self._merge()

    def moments(self, min_count: int) -> dict[int, Moments]:
        """Return the moments of every class with at least `min_count` pushed samples."""
        self._merge()
        return {k: moments for k, moments in self.merged.items() if moments.count >= min_count}

    def info(self) -> dict[str, float]:
        """Return the share of boundary samples and their mean displacement, for the reply's JSON part."""
        return {
            "boundary": self.boundary / max(1, self.samples),
            "displacement": self.displacement / max(1, self.boundary),
        }

    def _merge(self) -> None:
        if self.waiting:
            x, y = (torch.cat(column) for column in zip(*self.waiting, strict=True))
            self.merged = merge_by_class([self.merged, moments_by_class(x, y)])
            self.waiting.clear()
