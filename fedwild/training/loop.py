"""The local training loop that every gradient-based method shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from fedwild.core.rng import Rng
from fedwild.core.settings import Settings
from fedwild.data.samples import Samples
from fedwild.models import Network, has_batch_norm
from fedwild.models.inference import INFERENCE_BATCH
from fedwild.training.corrections.base import ClientCorrection
from fedwild.training.objectives import Objective
from fedwild.training.optimisers import SGD, Adam, Optimiser


class LocalTraining(Settings):
    """How a client trains."""

    epochs: int = Field(1, ge=0, description="passes over the client's own data per round")
    batch_size: int = Field(64, ge=1, description="samples per step; the last partial batch is kept")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="sgd or adam, reset every round")
    lr: float = Field(0.05, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd, beta1 of adam")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty inside the optimiser")

    def optimiser(self, model: nn.Module) -> Optimiser:
        """Return a new optimiser over the model's trainable parameters."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        if self.optimizer == "adam":
            return Adam(parameters, self.lr, (self.momentum, 0.999), self.weight_decay)
        return SGD(parameters, self.lr, self.momentum, self.weight_decay)


class RoundTraining(LocalTraining):
    """How a client trains in rounds whose learning rate may fall."""

    halve_after: int | None = Field(None, ge=1, description="rounds after which the learning rate is halved, each time")

    def in_round(self, round_: int) -> Self:
        """Return the settings of a round of the phase, counted from 0."""
        if self.halve_after is None:
            return self
        return self.model_copy(update={"lr": self.lr * 0.5 ** (round_ // self.halve_after)})


class Trained(NamedTuple):
    """The result of local training."""

    steps: int
    loss: float | None
    """Mean loss per sample over the last epoch; None if there was no step, or if it must stay unknown."""

    def info(self) -> dict[str, int | float | None]:
        """Return the fields for a reply's `info`."""
        return {"steps": self.steps, "loss": self.loss}


class Descent:
    """Draws batches and computes their gradients. Methods that inspect or change gradients use a subclass."""

    def epoch(self, left: int) -> None:
        """Called at the start of each epoch; `left` more follow it."""

    def batches(
        self, model: Network, samples: Samples, settings: LocalTraining, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches x (b, *shape), y (b,) of an epoch: each sample once, without batches that are too small."""
        smallest = min_batch(model, settings.batch_size, len(samples))
        for x, y in samples.batches(settings.batch_size, generator, augment=True):
            if len(y) >= smallest:
                yield x, y

    def gradients(
        self,
        model: Network,
        objective: Objective,
        correction: ClientCorrection,
        x: Tensor,
        y: Tensor,
        draws: torch.Generator,
    ) -> Tensor | None:
        """Set the model's gradients to those of loss + penalty for a batch.

        Return the mean loss without the penalty; None if it must stay unknown.
        """
        loss = objective.loss(model, x, y, draws)
        penalty = correction.penalty(x, y)
        model.zero_grad(set_to_none=True)
        (loss if penalty is None else loss + penalty).backward()
        return loss.detach()


PLAIN = Descent()


def min_batch(model: Network, batch_size: int, samples: int) -> int:
    """Return the smallest batch that is trained on: with batch-norm, an eighth of the usual size, but at least 2.

    A batch of one sample has no variance for batch-norm to divide by, and one of two or three hardly any: a single
    step along its gradient can undo an epoch. A client that has no more samples than that still trains on all of them.
    """
    return max(2, min(batch_size // 8, samples)) if has_batch_norm(model) else 1


def train(
    model: Network,
    samples: Samples,
    settings: LocalTraining,
    objective: Objective,
    correction: ClientCorrection,
    rng: Rng,
    descent: Descent = PLAIN,
) -> Trained:
    """Train `model` in place. Without samples there are no steps."""
    if not all(module.training for module in model.modules()):
        model.train()
    device = next(model.parameters()).device
    objective = objective.on(samples, model)
    optimiser = settings.optimiser(model)
    order, draws = rng.torch("batches"), rng.torch("objective")
    steps, last = 0, None
    for epoch in range(settings.epochs):
        descent.epoch(settings.epochs - epoch - 1)
        total, seen = torch.zeros((), device=device), 0
        for x, y in descent.batches(model, samples, settings, order):
            x, y = x.to(device), y.to(device)
            loss = descent.gradients(model, objective, correction, x, y, draws)
            correction.before_step()
            optimiser.step()
            steps += 1
            if loss is not None:
                total += loss * len(y)
                seen += len(y)
        last = float(total) / seen if seen else None
    return Trained(steps, last)


@torch.no_grad()
def mean_loss(model: Network, samples: Samples, objective: Objective, rng: Rng) -> float | None:
    """Return the mean loss per sample of a network in evaluation mode; None without samples."""
    model.eval()
    device = next(model.parameters()).device
    objective = objective.on(samples, model)
    draws = rng.torch("mean-loss")
    total = 0.0
    for x, y in samples.batches(INFERENCE_BATCH):
        total += float(objective.loss(model, x.to(device), y.to(device), draws)) * len(y)
    return total / len(samples) if len(samples) else None
