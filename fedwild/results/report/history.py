"""What a run's log says, put in order: rounds, clients and phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True)
class Round:
    """One finished round."""

    number: int
    """Counted from 1."""
    phase: str
    loss: float | None
    seconds: float
    evaluation_seconds: float
    metrics: dict[str, float | None]
    """Empty where the round was not evaluated."""
    by: dict[str, dict[str, float | None]]


@dataclass
class ClientRecord:
    """What the log says of one client."""

    losses: dict[int, float | None] = field(default_factory=dict)
    """By number of the round."""
    infos: dict[int, Event] = field(default_factory=dict)
    """What its replies told, by number of the round."""
    samples: int | None = None
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    failures: int = 0


@dataclass
class PhaseCost:
    """What one kind of round cost, all together."""

    rounds: int = 0
    train_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class History:
    """The log of a run, in which rounds that were lost and done again appear once."""

    events: Sequence[Event]
    first_index: int = 0
    """Where its own rounds begin; those before are of the run that it goes on from."""

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
    def measured(self) -> list[Round]:
        """The rounds that were evaluated."""
        return [row for row in self.rounds if row.metrics]

    @property
    def planned(self) -> int:
        """How many rounds the run is to have, as far as the log says."""
        return max((int(event["rounds"]) for event in self.of("start", "resume")), default=0)

    @property
    def done(self) -> int:
        """How many rounds are done or were not needed."""
        return max((event["index"] + 1 for event in self.of("round", "skip")), default=0)

    @cached_property
    def borders(self) -> list[tuple[float, str]]:
        """The first round of every phase and its name; nothing if there is only one phase."""
        starts = [
            (float(row.number), row.phase)
            for before, row in zip([None, *self.rounds], self.rounds, strict=False)
            if before is None or before.phase != row.phase
        ]
        return starts if len(starts) > 1 else []

    @cached_property
    def clients(self) -> dict[str, ClientRecord]:
        """By name, in the order of names: costs of the run's own rounds, losses of all."""
        records: dict[str, ClientRecord] = {}
        for event in self.of("client", "client-failed"):
            record = records.setdefault(str(event["client"]), ClientRecord())
            failed = event["event"] == "client-failed"
            if event["index"] >= self.first_index:
                record.seconds += float(event.get("seconds") or 0)
                record.bytes_up += int(event.get("bytes_up") or 0)
                record.bytes_down += int(event.get("bytes_down") or 0)
                record.failures += failed
            if failed:
                continue
            info, number = event.get("info") or {}, event["index"] + 1
            record.infos[number] = info
            if "loss" in info:
                record.losses[number] = number_or_none(info["loss"])
            record.samples = info["samples"] if isinstance(info.get("samples"), int) else record.samples
        return dict(sorted(records.items()))

    @cached_property
    def costs(self) -> dict[str, PhaseCost]:
        """Of the run's own rounds by phase, in the order in which they came."""
        costs: dict[str, PhaseCost] = {}
        for row in self.rounds:
            if row.number <= self.first_index:
                continue
            cost = costs.setdefault(row.phase, PhaseCost())
            cost.rounds += 1
            cost.train_seconds += row.seconds
            cost.evaluation_seconds += row.evaluation_seconds
        for event in self.of("client", "client-failed"):
            if event["index"] < self.first_index:
                continue
            cost = costs.setdefault(str(event.get("phase")), PhaseCost())
            cost.bytes_up += int(event.get("bytes_up") or 0)
            cost.bytes_down += int(event.get("bytes_down") or 0)
        return costs


def number_or_none(value: Any) -> float | None:
    """A number that a client told; anything else is none."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
