"""What the server of a run keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedwild.contract.initial import Initial
from fedwild.contract.task import Task
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data.samples import Samples

EVERYONE = "*"
"""The key of the threshold that all clients share."""


@dataclass(frozen=True)
class Step:
    """One round: its phase, its number within the phase, and its number within the run."""

    phase: str
    round: int
    index: int


@dataclass
class Server:
    """What the server keeps. The state, classes, clients, thresholds and step are in every checkpoint.

    Every round goes on from what its checkpoint gives back, so that a resumed run cannot differ: names in
    `state` come in sorted order, and `state.info` is what JSON makes of it.
    """

    task: Task
    classes: ClassRegistry
    step: Step
    rng: Rng
    clients: tuple[str, ...] = ()
    state: Payload = field(default_factory=Payload)
    thresholds: dict[str, float] = field(default_factory=dict)
    public: Samples | None = None
    newcomers: tuple[str, ...] = ()
    """The clients that are no members yet when the run begins, in the order in which they arrive."""
    initial: Initial | None = None
    """For `Method.start` alone: the earlier run's model to begin with."""
    notes: list[str] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Say something in the run's log."""
        self.notes.append(text)

    def finding(self, what: str, **figures: Any) -> None:
        """Put figures, as plain values, into the run's log."""
        self.findings.append({"what": what, **figures})

    def to_payload(self) -> Payload:
        """All that a predictor or the next round needs, as one payload."""
        return Payload(
            dict(self.state.tensors),
            {
                "state": self.state.info,
                "classes": self.classes.to_json(),
                "clients": list(self.clients),
                # As text, since JSON cannot say "infinite".
                "thresholds": {name: repr(value) for name, value in self.thresholds.items()},
                "step": vars(self.step),
            },
        )

    @classmethod
    def from_payload(cls, payload: Payload, task: Task, rng: Rng) -> Server:
        return cls(
            task=task,
            classes=ClassRegistry.from_json(payload.info["classes"]),
            step=Step(**payload.info["step"]),
            rng=rng,
            clients=tuple(payload.info["clients"]),
            state=Payload(dict(payload.tensors), payload.info["state"]),
            thresholds={name: float(value) for name, value in payload.info["thresholds"].items()},
        )
