"""What a method is: a plan of phases, and who answers after them.

A method never learns which engine runs it, and an engine never asks which method it runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedwild.contract.answering import Answering
from fedwild.contract.exhibit import Exhibit, Record
from fedwild.contract.halves import Server
from fedwild.contract.phase import Phase
from fedwild.contract.predictor import Outcome
from fedwild.core.component import Component
from fedwild.models import Network


@dataclass(frozen=True)
class Traits:
    """Facts about a method that are needed before a server exists."""

    personal: bool = False
    """Whether each client answers with its own predictor."""
    starts_from: bool = False
    """Whether `start` can begin with another run's global model, as `initial_weights` does."""
    public_data: bool = False
    """Whether the server needs public unlabelled data."""
    sends_embeddings: bool = False
    """Whether clients send embeddings or means of them. The network then needs layers before its head."""
    unknown_output: bool | None = None
    """Whether the network that answers has an output for "unknown". None: if its objective trains one."""


class Method(Component, ABC):
    """A federated method: its settings, its components, its phases in the paper's order, and its answers."""

    parts: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The exchangeable components, by kind, with settings that differ from the usual ones: {"score": {},
    "objective": {"name": "proser", "open_weight": 0.01}}. Each becomes an attribute of the method."""
    traits: ClassVar[Traits] = Traits()

    def __init__(self, params: Any, **parts: Any) -> None:
        super().__init__(params)
        for kind in self.parts:
            setattr(self, kind, parts[kind])

    def check(self, network: Network | None, start_from: str | None) -> None:
        """Reject settings, components, a network or an earlier run that do not fit, by raising `UserError`.

        Called before a run begins. `network` is None if the shape of the data is not known yet.
        """

    @abstractmethod
    def phases(self) -> Sequence[Phase]:
        """Return the phases of a run, in order."""

    def start(self, server: Server) -> None:
        """Put the initial state into `server.state`. Draws come from `server.rng`."""

    @abstractmethod
    def answers(self, server: Server) -> Answering:
        """Return who answers after the rounds so far, and with what."""

    def weights(self, server: Server) -> dict[str, Tensor]:
        """Return the global model that another run may begin with; empty if there is none."""
        return server.state.group("model")

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Return figures specific to this method, beside the common open-set metrics."""
        return {}

    def exhibits(self, record: Record) -> Sequence[Exhibit]:
        """Return what the report shows about this method: tables, curves and grids of images."""
        return ()


class Welcomes(ABC):
    """A mix-in for methods that welcome newcomers during a run and add their new classes to the registry."""

    @abstractmethod
    def arrivals(self, newcomers: Sequence[str]) -> dict[str, int | str]:
        """Return the round or phase in which each newcomer arrives, unless the user sets it."""

    @abstractmethod
    def welcomed(self, server: Server) -> Sequence[str]:
        """Return the newcomers that have become members."""

    @classmethod
    @abstractmethod
    def welcome_settings(cls, rounds: int | None, max_forgetting: float | None) -> dict[str, Any]:
        """Return the settings for welcoming one newcomer into a finished run; None stands for the default."""


class Discovers:
    """A mix-in for methods that discover novel classes among the unlabelled samples of clients.

    Its `measure` returns `novel_accuracy` and `number_found`, which tables of results show.
    """
