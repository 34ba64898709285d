"""The base class of objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from fedwild.core.component import Component
from fedwild.core.errors import UserError
from fedwild.core.registry import Registry
from fedwild.data.samples import Samples
from fedwild.models import Network


class Objective(Component, ABC):
    """A loss over one batch."""

    extra_outputs: ClassVar[int] = 0
    """Outputs of the head beyond the known classes, such as PROSER's dummy."""
    protects: ClassVar[tuple[str, ...]] = ()
    """`("sample",)` if the loss of a batch is the mean of losses that depend on one sample each and on no other data
    of the client, so that sample-level privacy can protect it. A subclass that overrides a function must repeat it."""

    def check(self, model: Network) -> None:
        """Reject a network that this objective cannot train, before a run begins, by raising `UserError`."""

    def on(self, samples: Samples, model: Network) -> Objective:
        """Return the objective for a client with these samples, which it may inspect before the first step."""
        return self

    @property
    def has_open_loss(self) -> bool:
        """Whether the loss has a closed-set and an open-set part (`closed_and_open`)."""
        return type(self).closed_and_open is not Objective.closed_and_open

    def closed_and_open(
        self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return L_close and L_open of a batch; `loss` is L_close + open_weight * L_open."""
        raise UserError(f"objective.name = {self.name!r} has no open-set loss; use proser or outlier-aware.")

    @property
    def open_weight(self) -> float:
        """The weight of L_open in `loss`."""
        return 0.0

    @abstractmethod
    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean loss of a batch x (n, *shape), y (n,)."""


OBJECTIVES: Registry[Objective] = Registry("objective", Objective)
