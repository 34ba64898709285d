"""What an objective is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedwild.data.samples import Samples
from fedwild.core.errors import UserError
from fedwild.core.settings import Settings
from fedwild.models import Network
from fedwild.core.registry import Registry


class Objective(ABC):
    """A loss over one batch."""

    name: ClassVar[str]
    Params: ClassVar[type[Settings]] = Settings
    extra_outputs: ClassVar[int] = 0
    """Outputs of the head beyond the known classes, such as PROSER's dummy."""

    def __init__(self, params: Any) -> None:
        self.params = params

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    def check(self, model: Network) -> None:
        """Refuse a network that this objective cannot train, before a run begins, by raising `UserError`."""

    def on(self, samples: Samples, model: Network) -> Objective:
        """The objective for a client with these samples, which it may look at before the first step."""
        return self

    @property
    def has_open_loss(self) -> bool:
        """Whether `closed_and_open` tells what makes samples known from what makes them unknown."""
        return type(self).closed_and_open is not Objective.closed_and_open

    def closed_and_open(
        self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """L_close and L_open of a batch. `loss` is their sum with `open_weight`."""
        raise UserError(f"objective.name = {self.name!r} has no open-set loss; take proser or outlier-aware.")

    @property
    def open_weight(self) -> float:
        """The weight of L_open in `loss`."""
        return 0.0

    @abstractmethod
    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss of a batch x (n, *shape), y (n,)."""


OBJECTIVES: Registry[Objective] = Registry("objective", Objective)
