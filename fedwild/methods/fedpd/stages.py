"""The paper's two learning rates as two stages: closed-set training, then open-set training at the smaller rate."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwild.data.samples import Samples
from fedwild.models import Network
from fedwild.training import Objective, RoundTraining


class Reweighted(Objective):
    """L_close + weight * L_open of another objective, whose own weight is not used."""

    def __init__(self, whole: Objective, weight: float) -> None:
        super().__init__(whole.params)
        self.whole, self.weight = whole, weight

    @property
    def open_weight(self) -> float:
        return self.weight

    def on(self, samples: Samples, model: Network) -> Objective:
        return Reweighted(self.whole.on(samples, model), self.weight)

    def closed_and_open(
        self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        return self.whole.closed_and_open(model, x, y, generator)

    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        close, open_ = self.closed_and_open(model, x, y, generator)
        return close + self.weight * open_


def closed_rounds(rounds: int, share: float) -> int:
    """Return the rounds of the first stage. Each stage has at least one of two or more rounds."""
    return min(max(1, round(share * rounds)), rounds - 1)


def in_stage(settings: RoundTraining, objective: Objective, is_closed: bool) -> tuple[RoundTraining, Objective]:
    """Return the settings and the loss of a stage.

    The first minimises L_close at the learning rate `lr`. The second minimises L_close + L_open at `lr` times the
    objective's open weight, the ratio of the paper's two rates.
    """
    if is_closed:
        return settings, Reweighted(objective, 0.0)
    return settings.model_copy(update={"lr": settings.lr * objective.open_weight}), Reweighted(objective, 1.0)
