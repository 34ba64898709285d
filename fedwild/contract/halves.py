"""What the two halves of a phase work with: the server, one client, and the replies of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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


@dataclass
class Client:
    """One client, where its data is. Labels are ids in the server's registry, found by class *name*."""

    name: str
    task: Task
    step: Step
    classes: tuple[str, ...]
    """The server's classes, in the order of their ids."""
    view: Callable[..., Samples]
    """A part of the client's data by name; of the unlabelled samples also those of one stage."""
    labels: Mapping[str, int]
    """How many labelled training samples it has of each class, by name; the server may not know some of them yet."""
    state: Payload = field(default_factory=Payload)
    """Durable: what is left here by one round is here in the next, also after a crash and resume."""
    notes: list[str] = field(default_factory=list)

    @cached_property
    def train(self) -> Samples:
        """Labelled training samples of the server's classes."""
        return self.view("train")

    def train_as(self, classes: Sequence[str]) -> Samples:
        """Labelled training samples of these classes, numbered in this order, whatever the server knows."""
        return self.view("train", classes=tuple(classes))

    @cached_property
    def validation(self) -> Samples:
        """Labelled samples of the server's classes that are never trained on."""
        return self.view("validation")

    @cached_property
    def unlabelled(self) -> Samples:
        """Samples whose labels this client does not have."""
        return self.view("unlabelled")

    def unlabelled_in(self, stage: int) -> Samples:
        """Those of the unlabelled samples that turn up in a stage, counted from 1."""
        return self.view("unlabelled", stage)

    def note(self, text: str) -> None:
        """Say something in the run's log, such as a step that was skipped and why."""
        self.notes.append(text)


@dataclass(frozen=True)
class Reply:
    """A client's accepted answer."""

    client: str
    payload: Payload

    @property
    def samples(self) -> int:
        """How many training samples stand behind this reply."""
        return int(self.payload.info["samples"])


class Replies:
    """The round's accepted replies in the order of the clients' names, read one at a time.

    Every pass reads them anew, one at a time, so that a round costs the same for ten clients and ten thousand, and
    a merge may change what it is given.
    """

    def __init__(self, readers: dict[str, Callable[[], Payload]]) -> None:
        self._readers = dict(sorted(readers.items()))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __iter__(self) -> Iterator[Reply]:
        for name, read in self._readers.items():
            yield Reply(name, read())
