"""What a client minimises in each batch, with its personal head and with virtual unknown samples: Eq. 11 to 14."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from fedwild.methods.fedoss.boundary import BoundaryRule, displacement, invert, is_called_unknown
from fedwild.methods.fedoss.open_space import Grid
from fedwild.methods.fedoss.settings import FedOSSParams
from fedwild.models import Network
from fedwild.statistics import Moments, merge_by_class, moments_by_class
from fedwild.training import ClientCorrection, Descent, Objective
from fedwild.training.objectives.balanced import with_shares
from fedwild.training.objectives.proser import mask_class
from fedwild.training.optimisers import Optimiser


class PersonalTraining(Descent):
    """Trains the network, and a personal head on the network's detached activations."""

    def __init__(
        self, cut: str, head: nn.Module, optimiser: Optimiser, log_prior: Tensor, all_outputs: bool = False
    ) -> None:
        """With `all_outputs`, cross-entropy is over K + 1 outputs instead of the K known classes."""
        self.cut, self.head, self.optimiser, self.all_outputs = cut, head, optimiser, all_outputs
        self.log_prior = log_prior
        """(K,) added to the logits of the known classes: the client's log label shares, or zeros."""

    def gradients(
        self, model: Network, objective: Objective, correction: ClientCorrection, x: Tensor, y: Tensor, draws: Generator
    ) -> Tensor:
        h = model.upto(x, self.cut)
        loss = self.loss(model, h, y, draws)
        own = F.cross_entropy(self.head(h.detach()) + self.log_prior, y)
        penalty = correction.penalty(x, y)
        model.zero_grad(set_to_none=True)
        self.head.zero_grad(set_to_none=True)
        (loss + own if penalty is None else loss + own + penalty).backward()
        self.optimiser.step()
        return loss.detach()

    def loss(self, model: Network, h: Tensor, y: Tensor, draws: Generator) -> Tensor:
        """Return the network's loss for activations h (n, ...): here cross-entropy."""
        logits = model.after(h, self.cut)
        if not self.all_outputs:
            logits = logits[:, : len(self.log_prior)]
        return F.cross_entropy(with_shares(logits, self.log_prior), y)


class Virtual(NamedTuple):
    """A batch of virtual unknown samples."""

    weight: float
    """The weight of its mean loss."""
    h: Tensor
    """Activations (m, ...) at the cut."""
    near: Tensor
    """The known class near which each one lies (m,)."""
    own_pass: bool = False
    """Whether batch-norm sees it alone, not together with the known samples."""


class Synthesis(PersonalTraining):
    """Synthesises virtual unknown samples from each batch and trains the network to answer "unknown" to them."""

    def __init__(
        self,
        personal: PersonalTraining,
        rule: BoundaryRule,
        sample: Callable[[], tuple[Tensor, Tensor]] | None,
        settings: FedOSSParams,
        grid: Grid,
    ) -> None:
        """`sample` returns activations (n, ...) drawn from Gaussians, and the class of each Gaussian (n,)."""
        super().__init__(personal.cut, personal.head, personal.optimiser, personal.log_prior)
        self.rule, self.sample, self.settings, self.tally = rule, sample, settings, Tally(grid)
        self.is_last_epoch = False

    def epoch(self, left: int) -> None:
        self.is_last_epoch = left == 0

    def loss(self, model: Network, h: Tensor, y: Tensor, draws: Generator) -> Tensor:
        virtual = [batch for batch in self.virtual(model, h.detach(), y, draws) if batch.weight and len(batch.near)]
        joint = [batch for batch in virtual if not batch.own_pass]
        # One pass for these batches: it is cheapest, and batch-norm sees them together.
        logits = model.after(torch.cat([h, *(batch.h for batch in joint)]), self.cut)
        known, *rest = logits.split([len(y), *(len(batch.near) for batch in joint)])
        # Eq. 12, over K + 1 outputs. The unknown output has no label share.
        loss = F.cross_entropy(with_shares(known, self.log_prior), y)
        for batch, answers in zip(joint, rest, strict=True):
            loss = loss + batch.weight * self.unknown_loss(answers, batch.near)
        for batch in virtual:
            if batch.own_pass:
                loss = loss + batch.weight * self.unknown_loss(model.after(batch.h, self.cut), batch.near)
        return loss

    def unknown_loss(self, logits: Tensor, near: Tensor) -> Tensor:
        """Return CE(f(x) without the class `near`, K + 1), or CE(f(x), K + 1) if nothing is masked (Eq. 13)."""
        target = torch.full_like(near, logits.shape[1] - 1)
        return F.cross_entropy(mask_class(logits, near) if self.settings.masked else logits, target)

    def virtual(self, model: Network, h: Tensor, y: Tensor, draws: Generator) -> list[Virtual]:
        """Return the batches of DUSS and FOSS for known activations h (n, ...)."""
        is_boundary = self.rule(model, h, y, draws)
        start, labels = h[is_boundary], y[is_boundary]
        pushed = self.allowed(invert(model, start, labels, self.cut, self.settings), h) if len(labels) else start
        accepted = self.accepted(model, pushed)
        if self.is_last_epoch:
            self.tally.add(len(y), start, pushed, labels, accepted)
        batches = [Virtual(self.settings.duss, pushed[accepted], labels[accepted])]
        if self.draws_for(labels) and self.sample is not None:
            drawn, near = self.sample()
            # Batch-norm cannot normalise a single sample.
            alone = self.settings.own_pass and len(near) > 1
            batches.append(Virtual(self.settings.foss, self.allowed(drawn, h), near, alone))
        return batches

    def draws_for(self, boundary: Tensor) -> bool:
        """Return whether samples are drawn for a batch whose boundary samples have these labels (m,)."""
        return self.settings.foss > 0 and (self.settings.draw_in == "all" or len(boundary) > 0)

    def accepted(self, model: Network, pushed: Tensor) -> Tensor:
        """Return which pushed samples (m, ...) are used (m,).

        With accept = "unknown", these are the ones that the network already answers with "unknown". A sample that a
        push leaves inside a known class does not teach that this class is unknown.
        """
        if self.settings.accept == "all" or not len(pushed):
            return torch.ones(len(pushed), dtype=torch.bool, device=pushed.device)
        return is_called_unknown(model, pushed, self.cut)

    def allowed(self, virtual: Tensor, h: Tensor) -> Tensor:
        """Return virtual activations (m, ...), with `rectify` without values below those of known ones h (n, ...).

        After ReLU, no activation is negative. Otherwise the sign alone would separate virtual from known samples.
        """
        return virtual.clamp_min(min(0.0, float(h.min()))) if self.settings.rectify else virtual


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

    def add(self, samples: int, start: Tensor, pushed: Tensor, labels: Tensor, accepted: Tensor) -> None:
        """Add a batch of `samples` samples, of which those with activations `start` (n, ...) were pushed.

        Only `accepted` ones (n,) enter the moments.
        """
        self.samples += samples
        self.boundary += len(labels)
        self.displacement += float(displacement(start, pushed).sum())
        self.waiting.append((self.grid.to_vectors(pushed[accepted]).cpu(), labels[accepted].cpu()))
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
