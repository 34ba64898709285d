"""The interface of engines: they take jobs to clients and return answers in any order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fedwild.contract.halves import Step
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload

Kind = Literal["local", "validate", "test", "measure", "advertise", "share", "masked", "unmask"]
SECURE_KINDS = ("advertise", "share", "masked", "unmask")
"""The steps of a secure sum, in order."""


@dataclass(frozen=True)
class Job:
    """One piece of work. `payload` is a file, written once for all the jobs that share it.

    local: the client half of a round. validate: a sketch of the unknown scores of the client's validation data.
    test: the predictor's answers on test rows `start:stop`, or those of a client's own predictor on its own rows.
    measure: figures of the predictor's answers on the client's own test rows, decided at `threshold`.
    advertise, share, masked, unmask: the steps of a secure sum; `masked` is `local` with a masked reply.
    """

    kind: Kind
    step: Step
    payload: str
    client: str | None = None
    classes: tuple[str, ...] = ()
    state: int | None = None
    """The version of the client's durable state to start from; None if it has none yet."""
    start: int = 0
    stop: int = 0
    threshold: float = math.inf

    def to_json(self) -> bytes:
        return json.dumps({**vars(self), "step": vars(self.step)}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Job:
        fields = json.loads(data)
        fields["step"] = Step(**fields["step"])
        fields["classes"] = tuple(fields["classes"])
        return cls(**fields)


@dataclass(frozen=True)
class Answer:
    """The result of a job: the place of its payload in a file, or the error."""

    job: Job
    path: str | None = None
    offset: int = 0
    size: int = 0
    seconds: float = 0.0
    state: int | None = None
    """The version of the client's durable state after the job."""
    notes: list[str] = field(default_factory=list)
    error: str | None = None
    traceback: str | None = None
    disk_failed: bool = False
    """Whether a file of the run could not be read or written. This is not the client's fault and ends the run."""

    def read(self) -> Payload:
        """Return the payload, decoded and so checked for form."""
        assert self.path is not None
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.offset)
            data = bytearray(self.size)
            rest = memoryview(data)
            while rest:
                count = file.readinto(rest)
                if not count:
                    raise BadReply(f"reply of {self.size} bytes is cut short in {self.path}")
                rest = rest[count:]
        return Payload.decode(data)

    def to_json(self) -> bytes:
        return json.dumps({**vars(self), "job": None}).encode()

    @classmethod
    def from_json(cls, data: bytes, job: Job) -> Answer:
        fields: dict[str, Any] = json.loads(data)
        return cls(**{**fields, "job": job})


@dataclass(frozen=True)
class Presence:
    """A client that connected by itself, and what it declares about itself."""

    name: str
    classes: tuple[str, ...]
    samples: int
    newcomer: bool = False
    """Whether it is not a member yet and must be welcomed first."""
    identity: str = ""
    """Distinguishes it from another client of the same name."""
    notify: Callable[[str], None] = lambda text: None
    """Shows a message to the person who runs it."""


class Engine(Protocol):
    """Runs jobs. A job that fails yields an `Answer` with an error; a client's failure never raises."""

    def present(self) -> Mapping[str, Presence] | None:
        """Return who is connected now, or None where all clients are always present."""
        ...

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        """Yield answers as they arrive; `started` is called when a job is sent."""
        ...

    def close(self) -> None:
        """Close processes and connections."""
        ...
