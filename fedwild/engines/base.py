"""What an engine is: something that carries jobs to clients and brings their answers back, in any order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from fedwild.errors import BadReply
from fedwild.payload import Payload
from fedwild.protocol import Step

Kind = Literal["local", "validate", "test", "measure"]


@dataclass(frozen=True)
class Job:
    """One piece of work. `payload` is a file, written once for all the jobs that share it.

    local: the client's part of a round. validate: the predictor's unknown scores on the client's validation data.
    test: the predictor's answers on test rows `start:stop`; if a client is named, its own predictor's on its own rows.
    measure: figures of the predictor's answers on the client's own test rows, decided at `threshold`.
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
    """What came of a job: where its payload lies in a file, or why there is none."""

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
    """A file of the run could not be read or written: not the client's fault, and no reason to go on."""

    def read(self) -> Payload:
        """The payload, decoded and so checked for form."""
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
    """A client that is there of its own accord, and what it says of itself."""

    name: str
    classes: tuple[str, ...]
    samples: int
    newcomer: bool = False
    """Whether it is no member yet, but someone to be welcomed."""
    identity: str = ""
    """Tells it from anybody else of its name."""
    tell: Callable[[str], None] = lambda text: None
    """Says something to whoever runs it."""


class Engine(Protocol):
    """Runs jobs. A job that fails yields an `Answer` with an error; it never raises for a client's sake."""

    def present(self) -> Mapping[str, Presence] | None:
        """Who is there now, where clients come and go; None where all of them are always there."""
        ...

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        """Answers as they come; `started` is called when a job goes out."""
        ...

    def close(self) -> None:
        """Let go of processes and connections."""
        ...
