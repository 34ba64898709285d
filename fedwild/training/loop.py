"""The local training loop that every gradient-based method shares."""

from __future__ import annotations

from typing import Literal, NamedTuple

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
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="sgd or adam, fresh every round")
    lr: float = Field(0.05, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of sgd, beta1 of adam")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty inside the optimiser")

    def optimiser(self, model: nn.Module) -> Optimiser:
        """A fresh optimiser over the model's trainable parameters; one fused call per step."""
        parameters = [p for p in model.parameters() if p.requires_grad]
        if self.optimizer == "adam":
            return Adam(parameters, self.lr, (self.momentum, 0.999), self.weight_decay)
        return SGD(parameters, self.lr, self.momentum, self.weight_decay)


class Trained(NamedTuple):
    """What local training did."""

    steps: int
    loss: float | None
    """Mean loss per sample over the last epoch; None if there was no step."""

    def info(self) -> dict[str, int | float | None]:
        """For a reply's JSON part."""
        return {"steps": self.steps, "loss": self.loss}


class Descent:
    """Fills the gradients of one batch after another. A method that looks into them has a subclass of its own."""

    def epoch(self, left: int) -> None:
        """An epoch begins, and `left` more will follow it."""

    def gradients(
        self,
        model: Network,
        objective: Objective,
        correction: ClientCorrection,
        x: Tensor,
        y: Tensor,
        draws: torch.Generator,
    ) -> Tensor:
        """Put the gradient of the batch's loss and the correction's penalty into the model; returns the loss."""
        loss = objective.loss(model, x, y, draws)
        penalty = correction.penalty(x, y)
        model.zero_grad(set_to_none=True)
        (loss if penalty is None else loss + penalty).backward()
        return loss.detach()


PLAIN = Descent()
SMALLEST_SHARE = 8
"""With batch-norm, a last batch of less than an eighth of the usual size is left out."""


def smallest_batch(model: Network, batch_size: int, samples: int) -> int:
    """How many samples a batch must have to be trained on.

    A batch of one has no variance for batch-norm to divide by, and one of two or three hardly any: a single step along
    its gradient can undo an epoch. A client with no more than that trains on what it has.
    """
    if not has_batch_norm(model):
        return 1
    return max(2, min(batch_size // SMALLEST_SHARE, samples))


def train(
    model: Network,
    samples: Samples,
    settings: LocalTraining,
    objective: Objective,
    correction: ClientCorrection,
    rng: Rng,
    descent: Descent = PLAIN,
) -> Trained:
    """Train `model` in place. A client without samples takes no step."""
    if not all(module.training for module in model.modules()):
        model.train()
    device = next(model.parameters()).device
    objective = objective.on(samples, model)
    optimiser = settings.optimiser(model)
    smallest = smallest_batch(model, settings.batch_size, len(samples))
    order, draws = rng.torch("batches"), rng.torch("objective")
    steps, last = 0, None
    for epoch in range(settings.epochs):
        descent.epoch(settings.epochs - epoch - 1)
        total, seen = torch.zeros((), device=device), 0
        for x, y in samples.batches(settings.batch_size, order, augment=True):
            if len(y) < smallest:
                continue
            x, y = x.to(device), y.to(device)
            loss = descent.gradients(model, objective, correction, x, y, draws)
            correction.before_step()
            optimiser.step()
            total += loss * len(y)
            seen += len(y)
            steps += 1
        last = float(total) / seen if seen else None
    return Trained(steps, last)


@torch.no_grad()
def mean_loss(model: Network, samples: Samples, objective: Objective, rng: Rng) -> float | None:
    """The mean loss per sample of a network as it is, in evaluation mode; None without samples."""
    model.eval()
    device = next(model.parameters()).device
    objective = objective.on(samples, model)
    draws = rng.torch("mean-loss")
    total = 0.0
    for x, y in samples.batches(INFERENCE_BATCH):
        total += float(objective.loss(model, x.to(device), y.to(device), draws)) * len(y)
    return total / len(samples) if len(samples) else None
