"""The log of a run by rounds, clients and phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True)
class Round:
    """One completed round."""

    number: int
    """Counted from 1."""
    phase: str
    loss: float | None
    seconds: float
    evaluation_seconds: float
    metrics: dict[str, float | None]
    """Empty if the round was not evaluated."""
    by: dict[str, dict[str, float | None]]
    """Metrics by client or domain."""


@dataclass
class ClientHistory:
    """What the log says about one client."""

    rounds: set[int] = field(default_factory=set)
    """The numbers of the rounds with a reply."""
    losses: dict[int, float | None] = field(default_factory=dict)
    """By number of the round."""
    samples: int | None = None
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    failures: int = 0


@dataclass
class PhaseCost:
    """The total cost of all rounds of a phase."""

    rounds: int = 0
    training_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class History:
    """The log of a run."""

    events: Sequence[Event]
    first_index: int = 0
    """The index of the run's first round; rounds before it belong to the run that it continues."""

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.get("event") in kinds]

    @cached_property
    def rounds(self) -> list[Round]:
        return [
            Round(
                number=event["index"] + 1,
                phase=str(event["phase"]),
                loss=event.get("loss"),
                seconds=float(event.get("seconds") or 0),
                evaluation_seconds=float(event.get("evaluation_seconds") or 0),
                metrics=event.get("metrics") or {},
                by=event.get("by") or {},
            )
            for event in self.of("round")
        ]

    @property
    def evaluated(self) -> list[Round]:
        """The rounds that were evaluated."""
        return [row for row in self.rounds if row.metrics]

    @property
    def planned(self) -> int:
        """The number of rounds that the run is to have."""
        return max((int(event["rounds"]) for event in self.of("start", "resume")), default=0)

    @property
    def done(self) -> int:
        """The number of rounds that are completed or were skipped."""
        return max((event["index"] + 1 for event in self.of("round", "skip")), default=0)

    @cached_property
    def borders(self) -> list[tuple[float, str]]:
        """The first round and the name of every phase; empty if there is only one phase."""
        starts = [
            (float(row.number), row.phase)
            for before, row in zip([None, *self.rounds], self.rounds, strict=False)
            if before is None or before.phase != row.phase
        ]
        return starts if len(starts) > 1 else []

    @cached_property
    def clients(self) -> dict[str, ClientHistory]:
        """By name, sorted: the costs of the run's own rounds, and the losses of all rounds."""
        clients: dict[str, ClientHistory] = {}
        for event in self.of("client", "client-failed"):
            client = clients.setdefault(str(event["client"]), ClientHistory())
            failed = event["event"] == "client-failed"
            if event["index"] >= self.first_index:
                client.seconds += float(event.get("seconds") or 0)
                client.bytes_up += int(event.get("bytes_up") or 0)
                client.bytes_down += int(event.get("bytes_down") or 0)
                client.failures += failed
            if failed:
                continue
            info, number = event.get("info") or {}, event["index"] + 1
            client.rounds.add(number)
            if "loss" in info:
                # Any other value than a number comes from an invalid reply.
                client.losses[number] = float(info["loss"]) if type(info["loss"]) in (int, float) else None
            client.samples = info["samples"] if isinstance(info.get("samples"), int) else client.samples
        return dict(sorted(clients.items()))

    @cached_property
    def costs(self) -> dict[str, PhaseCost]:
        """The costs of the run's own rounds by phase, in the order of phases."""
        costs: dict[str, PhaseCost] = {}
        for row in self.rounds:
            if row.number <= self.first_index:
                continue
            cost = costs.setdefault(row.phase, PhaseCost())
            cost.rounds += 1
            cost.training_seconds += row.seconds
            cost.evaluation_seconds += row.evaluation_seconds
        for event in self.of("client", "client-failed", "secure-sum"):
            if event["index"] < self.first_index:
                continue
            cost = costs.setdefault(str(event.get("phase")), PhaseCost())
            cost.bytes_up += int(event.get("bytes_up") or 0)
            cost.bytes_down += int(event.get("bytes_down") or 0)
        return costs
