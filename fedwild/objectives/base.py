"""What an objective is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedwild.hyper import Hyper
from fedwild.models import Network
from fedwild.registry import Registry


class Objective(ABC):
    """A loss over one batch."""

    name: ClassVar[str]
    Params: ClassVar[type[Hyper]] = Hyper
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

    @abstractmethod
    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The mean loss of a batch x (n, *shape), y (n,)."""


OBJECTIVES: Registry[Objective] = Registry("objective", lambda: Objective)
