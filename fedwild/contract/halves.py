"""What the two halves of a phase work with: the server, one client, and the replies of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedwild.contract import reference
from fedwild.contract.initial import Initial
from fedwild.contract.reference import Reference
from fedwild.contract.task import Task
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data.samples import Samples


@dataclass(frozen=True)
class Step:
    """One round: its phase, its number within the phase, and its number within the run."""

    phase: str
    round: int
    index: int


@dataclass
class Server:
    """What the server keeps. The state, classes, clients, thresholds, references and step are in every checkpoint.

    Every round starts from what its checkpoint returns, so that a resumed run cannot differ: names in `state` are
    sorted, and `state.info` has been converted to JSON and back.
    """

    task: Task
    classes: ClassRegistry
    step: Step
    rng: Rng
    clients: tuple[str, ...] = ()
    state: Payload = field(default_factory=Payload)
    thresholds: dict[str, float] = field(default_factory=dict)
    references: dict[str, Reference] = field(default_factory=dict)
    """The scores of known validation samples at the last evaluation; by client, or for `EVERYONE`."""
    public: Samples | None = None
    newcomers: tuple[str, ...] = ()
    """The clients that are not members when the run begins, in the order of their arrival."""
    initial: Initial | None = None
    """The model of an earlier run to begin with; only set for `Method.start`."""
    notes: list[str] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a message to the run's log."""
        self.notes.append(text)

    def finding(self, what: str, **figures: Any) -> None:
        """Add figures, as plain values, to the run's log."""
        self.findings.append({"what": what, **figures})

    def to_payload(self) -> Payload:
        """Return everything that a predictor or the next round needs as one payload."""
        quantiles, references = reference.pack(self.references)
        payload = Payload(
            dict(self.state.tensors),
            {
                "state": self.state.info,
                "classes": self.classes.to_json(),
                "clients": list(self.clients),
                # As text, since JSON has no infinity.
                "thresholds": {name: repr(value) for name, value in self.thresholds.items()},
                "step": vars(self.step),
                reference.GROUP: references,
            },
        )
        if references:
            payload.put(reference.GROUP, {reference.QUANTILES: quantiles})
        return payload

    @classmethod
    def from_payload(cls, payload: Payload, task: Task, rng: Rng) -> Server:
        state = Payload(dict(payload.tensors), payload.info["state"])
        state.drop(reference.GROUP)
        return cls(
            task=task,
            classes=ClassRegistry.from_json(payload.info["classes"]),
            step=Step(**payload.info["step"]),
            rng=rng,
            clients=tuple(payload.info["clients"]),
            state=state,
            thresholds={name: float(value) for name, value in payload.info["thresholds"].items()},
            references=reference.unpack(payload),
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
    """Returns a part of the client's data by name, and of the unlabelled samples those of one stage."""
    labels: Mapping[str, int]
    """The number of labelled training samples by class name, including classes that the server does not know yet."""
    state: Payload = field(default_factory=Payload)
    """Durable: kept from round to round, also after a crash and resume."""
    notes: list[str] = field(default_factory=list)

    @cached_property
    def train(self) -> Samples:
        """Labelled training samples of the server's classes."""
        return self.view("train")

    def train_as(self, classes: Sequence[str]) -> Samples:
        """Return labelled training samples of these classes, numbered in this order; the server need not know them."""
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
        """Return the unlabelled samples of one stage, counted from 1."""
        return self.view("unlabelled", stage)

    def note(self, text: str) -> None:
        """Add a message to the run's log, such as the reason for a skipped step."""
        self.notes.append(text)


@dataclass(frozen=True)
class Reply:
    """An accepted reply of a client."""

    client: str
    payload: Payload

    @property
    def samples(self) -> int:
        """The number of training samples behind this reply."""
        return int(self.payload.info["samples"])


class Replies:
    """The accepted replies of a round, in the order of the clients' names.

    Every iteration reads them from disk, one at a time: memory does not depend on the number of clients, and a merge
    may change the tensors that it gets.

    With secure sums, there is one reply for all clients, whose names and number are still known.
    """

    def __init__(self, readers: dict[str, Callable[[], Payload]], clients: Sequence[str] | None = None) -> None:
        self._readers = dict(sorted(readers.items()))
        self._clients = tuple(self._readers) if clients is None else tuple(sorted(clients))

    @property
    def names(self) -> tuple[str, ...]:
        return self._clients

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Reply]:
        for name, read in self._readers.items():
            yield Reply(name, read())
