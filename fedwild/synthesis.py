"""FedOSS at a client: a personal head beside the network, and virtual unknown samples made of known ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedwild.corrections.base import Steering
from fedwild.models import Network
from fedwild.objectives import Objective
from fedwild.objectives.balanced import with_shares
from fedwild.objectives.proser import without
from fedwild.openset.gaussians import Moments, by_class, merge_classes
from fedwild.openset.grids import Grid
from fedwild.openset.inversion import displacement
from fedwild.optimisers import Optimiser
from fedwild.training import Descent

MOST_ROWS = 4096
"""Features are folded into their moments when there are more."""

Recognise = Callable[[Network, Tensor, Tensor, torch.Generator], Tensor]
"""Which samples of a batch lie near a boundary: (model, activations h, labels y, draws) to a mask (n,)."""
Push = Callable[[Network, Tensor, Tensor], Tensor]
"""Activations pushed over the boundary: (model, h, y) to (n, ...)."""
Sample = Callable[[], tuple[Tensor, Tensor]]
"""More of them from the federation's Gaussians, and the class that each is near: (n, ...), (n,)."""


class Virtual(NamedTuple):
    """A batch of virtual unknown samples."""

    h: Tensor
    """(n, ...) activations at the cut."""
    near: Tensor
    """(n,) the known class that each is near."""
    weight: float
    """Of their mean loss."""


class PersonalHead(Descent):
    """Trains the network and, on activations that it cannot change, the client's own head: Eq. 12 and 14."""

    def __init__(self, cut: str, head: nn.Module, optimiser: Optimiser, shares: Tensor) -> None:
        self.cut, self.head, self.optimiser = cut, head, optimiser
        self.shares = shares
        """Added to the logits of the K classes: the client's log label shares, or zeros."""

    def gradients(
        self, model: Network, objective: Objective, steering: Steering, x: Tensor, y: Tensor, draws: torch.Generator
    ) -> Tensor:
        h = model.upto(x, self.cut)
        loss = self.loss(model, h, y, draws)
        own = F.cross_entropy(self.head(h.detach()) + self.shares, y)
        penalty = steering.penalty(x, y)
        model.zero_grad(set_to_none=True)
        self.head.zero_grad(set_to_none=True)
        (loss + own if penalty is None else loss + own + penalty).backward()
        self.optimiser.step()
        return loss.detach()

    def loss(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
        """What the network is trained for, of activations h (n, ...): here the cross-entropy over the K classes."""
        return F.cross_entropy(model.after(h, self.cut)[:, : len(self.shares)] + self.shares, y)


class Synthesis(PersonalHead):
    """Also makes virtual unknown samples of each batch and trains the network to call them unknown: Eq. 13."""

    def __init__(
        self,
        personal: PersonalHead,
        recognise: Recognise,
        push: Push,
        sample: Sample | None,
        weights: tuple[float, float],
        masked: bool,
        tally: Tally,
    ) -> None:
        super().__init__(personal.cut, personal.head, personal.optimiser, personal.shares)
        self.recognise, self.push, self.sample = recognise, push, sample
        self.weights, self.masked, self.tally = weights, masked, tally
        self.last_epoch = False

    def epoch(self, left: int) -> None:
        self.last_epoch = left == 0

    def loss(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
        virtual = [batch for batch in self.virtual(model, h.detach(), y, draws) if len(batch.near) and batch.weight]
        # One pass for all: the cheapest way, and batch-norm sees them together.
        logits = model.after(torch.cat([h, *(batch.h for batch in virtual)]), self.cut)
        own, *rest = logits.split([len(y), *(len(batch.near) for batch in virtual)])
        # Eq. 12, over K + 1 outputs; the unknown one has no share of its own.
        loss = F.cross_entropy(with_shares(own, self.shares), y)
        for batch, answers in zip(virtual, rest, strict=True):
            loss = loss + batch.weight * self.unknown(answers, batch.near)
        return loss

    def unknown(self, logits: Tensor, near: Tensor) -> Tensor:
        """CE(f(x) without its own class, K + 1), or CE(f(x), K + 1) where nothing is masked (Eq. 13)."""
        target = torch.full_like(near, logits.shape[1] - 1)
        return F.cross_entropy(without(logits, near) if self.masked else logits, target)

    def virtual(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> list[Virtual]:
        """DUSS's and FOSS's samples for known activations h (n, ...)."""
        near = self.recognise(model, h, y, draws)
        start, labels = h[near], y[near]
        pushed = self.push(model, start, labels) if len(labels) else start
        if self.last_epoch:
            self.tally.add(len(y), start, pushed, labels)
        duss, foss = self.weights
        batches = [Virtual(pushed, labels, duss)]
        if self.sample is not None and foss:
            batches.append(Virtual(*self.sample(), foss))
        return batches


@dataclass
class Tally:
    """What was synthesised in the last epoch: moments per class, and figures for the log."""

    grid: Grid
    samples: int = 0
    boundary: int = 0
    displaced: float = 0.0
    total: dict[int, Moments] = field(default_factory=dict)
    waiting: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def add(self, samples: int, start: Tensor, pushed: Tensor, labels: Tensor) -> None:
        self.samples += samples
        self.boundary += len(labels)
        self.displaced += float(displacement(start, pushed).sum())
        self.waiting.append((self.grid.vectors(pushed).cpu(), labels.cpu()))
        if sum(len(y) for _, y in self.waiting) > MOST_ROWS:
            self._fold()

    def moments(self, least: int) -> dict[int, Moments]:
        """Of every class with at least `least` synthesised samples."""
        self._fold()
        return {k: found for k, found in self.total.items() if found.count >= least}

    def info(self) -> dict[str, float]:
        """For a reply's JSON part."""
        return {
            "boundary": self.boundary / max(1, self.samples),
            "displacement": self.displaced / max(1, self.boundary),
        }

    def _fold(self) -> None:
        if self.waiting:
            x, y = (torch.cat(column) for column in zip(*self.waiting, strict=True))
            self.total = merge_classes([self.total, by_class(x, y)])
            self.waiting.clear()


def mean_info(infos: Sequence[Mapping[str, float]], weights: Sequence[float]) -> dict[str, float]:
    """The weighted mean of each figure."""
    total = sum(weights)
    if not total:
        return {}
    return {key: sum(w * info[key] for w, info in zip(weights, infos, strict=True)) / total for key in infos[0]}
