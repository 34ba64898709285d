"""The steps of a round with secure sums: jobs to clients, their answers, what they cost, and who dropped out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedwild.aggregation.secure.protocol import MIN_CLIENTS
from fedwild.contract import Payload, Server
from fedwild.contract.engine import Answer, Engine, Job, Kind
from fedwild.core.errors import BadReply, RoundFailed
from fedwild.engines.outbox import Outbox
from fedwild.lifecycle.exchange import Collected
from fedwild.lifecycle.ledger import Ledger
from fedwild.runs.events import EventLog
from fedwild.runs.settings import FederationSettings

NOTHING_KNOWN: dict[str, Any] = {"info": {}}
"""What the log says about a masked reply."""
Read = Callable[[str, Payload], None]
"""Takes a client's answer to a step, or raises `BadReply`."""


@dataclass(frozen=True)
class Means:
    """What all rounds with secure sums share."""

    engine: Engine
    spool: Path
    log: EventLog
    max_reply_bytes: float
    settings: FederationSettings
    folder: Path
    """The run folder, which messages name."""


@dataclass
class Steps:
    """The steps of one round with a number of chosen clients."""

    means: Means
    server: Server
    ledger: Ledger
    outbox: Outbox
    clients: int
    collected: Collected = field(default_factory=Collected)
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    """The costs of all steps but the masked replies, whose costs are logged by client."""

    @property
    def threshold(self) -> int:
        """The number of clients that each step needs: 2 t > n, so that no two disjoint groups have as many."""
        wanted = math.ceil(self.means.settings.secure_threshold * self.clients)
        return max(MIN_CLIENTS, self.clients // 2 + 1, wanted)

    def take_step(self, kind: Kind, names: Sequence[str], request: Callable[[str], Payload], read: Read) -> None:
        """Send a step's job to each client and read the answers. Raise `RoundFailed` if too few succeed."""
        succeeded = 0
        for answer in self.means.engine.run(self.jobs(kind, names, request), self.started):
            if answer.disk_failed:
                raise OSError(answer.error)
            succeeded += self.take(kind, answer, read)
        if succeeded < self.threshold:
            reasons = self.collected.reasons
            common = f" Most frequent reason: {max(reasons, key=reasons.count)}." if reasons else ""
            raise self.failed(
                f"{succeeded} of {self.clients} clients completed the step {kind!r} of the secure sum, and "
                f"{self.threshold} are needed (federation.secure_threshold = "
                f"{self.means.settings.secure_threshold:.3g}).{common}"
            )

    def jobs(self, kind: Kind, names: Sequence[str], request: Callable[[str], Payload]) -> Iterator[Job]:
        for name in names:
            path = self.outbox.file(request(name))
            yield Job(kind, self.server.step, path, name, self.server.classes.names, self.ledger.states.get(name))

    def started(self, job: Job) -> None:
        if job.kind == "masked":
            self.means.log.announce("client-start", client=job.client, index=job.step.index)

    def take(self, kind: Kind, answer: Answer, read: Read) -> bool:
        """Read an answer, log it, and return whether it is valid."""
        name, down = answer.job.client or "", self.outbox.answered(answer.job.payload)
        self.ledger.bytes_up += answer.size
        self.ledger.bytes_down += down
        reason = self.problem(answer, read)
        if reason is not None:
            self.collected.reasons.append(reason)
        if kind == "masked":
            if reason is None and answer.state is not None:
                self.collected.states[name] = answer.state
            self.log_client(answer, reason, answer.size, down)
            return reason is None
        # The event of the sum has the costs of all other steps.
        self.seconds, self.bytes_up, self.bytes_down = (
            self.seconds + answer.seconds,
            self.bytes_up + answer.size,
            self.bytes_down + down,
        )
        if reason is not None:
            self.log_client(answer, reason, 0, 0)
        return reason is None

    def problem(self, answer: Answer, read: Read) -> str | None:
        """Return why an answer is invalid, or None."""
        if answer.error is not None:
            return answer.error
        if answer.size > self.means.max_reply_bytes:
            return f"reply of {answer.size} bytes is larger than engine.max_reply_mb allows"
        try:
            read(answer.job.client or "", answer.read())
        except BadReply as problem:
            return f"bad reply: {problem}"
        except (KeyError, TypeError, ValueError, RuntimeError) as problem:
            return f"bad reply: {type(problem).__name__}: {problem}"
        return None

    def log_client(self, answer: Answer, reason: str | None, bytes_up: int, bytes_down: int) -> None:
        self.means.log.write(
            "client" if reason is None else "client-failed",
            **self.about(),
            client=answer.job.client,
            seconds=round(answer.seconds, 4),
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            **(NOTHING_KNOWN if reason is None else {"reason": reason, "traceback": answer.traceback}),
        )

    def about(self) -> dict[str, str | int]:
        """Return the fields of the log that name the round."""
        step = self.server.step
        return {"phase": step.phase, "round": step.round, "index": step.index}

    def failed(self, reason: str) -> RoundFailed:
        """Return the error of a round that cannot be completed."""
        step = self.server.step
        return RoundFailed(
            f"round {step.index + 1} ({step.phase}): {reason} `fedwild resume {self.means.folder}` tries the round "
            "again with new keys."
        )
