"""The base class of partitions, and their registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedwild.core.component import Component
from fedwild.core.errors import UserError
from fedwild.core.registry import Registry
from fedwild.data.dataset import Dataset

DEFAULT_CLIENTS = 10


@dataclass(frozen=True)
class Rows:
    """Training samples to divide: labels (n,) and, if known, numbers of domains and owners (n,)."""

    labels: np.ndarray
    domains: np.ndarray | None = None
    owners: np.ndarray | None = None


class Partition(Component, ABC):
    """A rule that divides training samples among clients."""

    short_setting: ClassVar[str] = ""
    """The setting that the number in a short form such as `dirichlet:0.1` gives; empty if there is none."""

    @abstractmethod
    def assign(self, rows: Rows, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        """Return the positions 0..n-1 of each client's samples; each position occurs exactly once."""

    def for_novel(self, classes: int, clients: int) -> Partition:
        """Return the partition of the novel samples, which have fewer classes."""
        return self

    def client_names(self, dataset: Dataset, clients: int | None) -> tuple[str, ...]:
        """Return the names of the clients in order; `clients` is the number that the user asks for, if any."""
        number = DEFAULT_CLIENTS if clients is None else clients
        if number < 1:
            raise UserError(f"federation.clients = {number} is not allowed: at least one client is needed.")
        width = max(2, len(str(number - 1)))
        return tuple(f"client-{index:0{width}d}" for index in range(number))


PARTITIONS: Registry[Partition] = Registry("partition", Partition)
