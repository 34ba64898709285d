"""What a client does with the embeddings of its samples, and how it learns novel classes (GAL, stage U)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.corrections import Steering
from fedwild.corrections.base import Groups
from fedwild.data.samples import Samples
from fedwild.discovery.losses import feature_distance, pairwise_bce, replay, semantic_weighted
from fedwild.initial import HEAD
from fedwild.models import Network
from fedwild.objectives import Objective

BATCH = 256
DISTILLATION, REPLAY = 10.0, 1.0
"""iNCD's weights of its two terms against forgetting."""


@torch.inference_mode()
def embeddings(model: Network, samples: Samples) -> Tensor:
    """Embeddings (n, d) of all samples, in order, in evaluation mode, on the CPU."""
    model.eval()
    device = model.head.weight.device
    parts = [model.embed(x.to(device)).cpu() for x, _ in samples.batches(BATCH)]
    return torch.cat(parts) if parts else torch.empty(0, model.embedding_dim)


@dataclass(frozen=True)
class NovelTargets:
    """What the server tells of the stage's novel classes."""

    known: int
    """Rows of the head before the novel ones; without rehearsal they are frozen."""
    prototypes: Tensor
    """Where the novel classes were found (C, d)."""
    stretch: Tensor
    """From the length of a row of the head at the stage's start to that of its prototype (C,)."""


class NovelObjective(Objective):
    """The loss of novel-class learning: samples labelled -1 are novel, the others have labels or pseudo-labels."""

    def __init__(
        self,
        targets: NovelTargets,
        supervised: Objective | None,
        loss: Literal["labels", "swl", "bce"],
        frozen: bool,
        temperature: float,
        normalised: bool,
        before: Network | None,
    ) -> None:
        super().__init__(None)
        self.targets, self.supervised, self.kind, self.frozen = targets, supervised, loss, frozen
        self.temperature, self.normalised = temperature, normalised
        self.before = before
        """The network of the stage's start, where its features are to be kept by distillation."""

    def on(self, samples: Samples, model: Network) -> Objective:
        if self.supervised is None:
            return self
        fitted = copy.copy(self)
        fitted.supervised = self.supervised.on(samples, model)
        return fitted

    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        loss = self.samples_loss(model, x, y, generator)
        if self.before is not None:
            with torch.no_grad():
                before = self.before.embed(x)
            loss = loss + DISTILLATION * feature_distance(model.embed(x), before)
            loss = loss + REPLAY * replay(model.head.weight, self.targets.known, generator)
        return loss

    def samples_loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The objective's loss where all samples have labels, else the novel ones' loss and cross-entropy."""
        if self.supervised is not None:
            return self.supervised.loss(model, x, y, generator)
        z, novel = model.embed(x), y < 0
        loss = z.sum() * 0.0
        if novel.any():
            loss = loss + novel.float().mean() * self.novel_loss(model, z[novel])
        if not novel.all():
            loss = loss + (~novel).float().mean() * F.cross_entropy(model.head(z[~novel]), y[~novel])
        return loss

    def novel_loss(self, model: Network, z: Tensor) -> Tensor:
        """SWL (Eq. 9) to frozen prototypes or to the head's rows, or the pairwise loss of its ablation (Eq. 11)."""
        rows = model.head.weight[self.targets.known :]
        if self.kind == "bce":
            return pairwise_bce(z, F.linear(z, rows))
        prototypes = self.targets.prototypes if self.frozen else rows * self.targets.stretch[:, None]
        return semantic_weighted(z, prototypes.to(z.device), self.temperature, self.normalised)


class FrozenRows(Steering):
    """A correction that leaves the first rows of the head alone."""

    def __init__(self, steering: Steering, model: Network, rows: int) -> None:
        self.steering, self.head, self.rows = steering, model.head, rows
        self.before = model.head.weight.detach()[:rows].clone()

    def penalty(self, x: Tensor, y: Tensor) -> Tensor | None:
        return self.steering.penalty(x, y)

    @torch.no_grad()
    def bend(self) -> None:
        self.steering.bend()
        if self.head.weight.grad is not None:
            self.head.weight.grad[: self.rows] = 0.0
        # Weight decay has moved rows without gradients, too.
        self.head.weight[: self.rows] = self.before

    @torch.no_grad()
    def up(self, steps: int, lr: float) -> Groups:
        self.head.weight[: self.rows] = self.before
        return self.steering.up(steps, lr)


def moving_average(weights: Mapping[str, Tensor], anchor: Mapping[str, Tensor], beta: float) -> dict[str, Tensor]:
    """Eq. 10: beta * anchor + (1 - beta) * weights for all of the extractor, batch-norm statistics too.

    The head is not the extractor's; whole numbers (batch-norm's counters) are the anchor's.
    """

    def merged(name: str, tensor: Tensor) -> Tensor:
        if name in HEAD:
            return tensor
        old = anchor[name]
        return beta * old + (1 - beta) * tensor if tensor.is_floating_point() else old.clone()

    return {name: merged(name, tensor) for name, tensor in weights.items()}


def tensors_of(**arrays: Any) -> dict[str, Tensor]:
    """Arrays as tensors, real numbers in single precision."""
    made = {name: torch.as_tensor(array) for name, array in arrays.items()}
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in made.items()}
