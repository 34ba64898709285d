"""The exchange of a round: jobs go to clients, their answers are checked, and valid replies are accepted.

The steps of a round, in order: collect answers, limit what replies may change (`limits.py`), merge them into a copy of
the server (`merging.py`), and check the copy before it becomes the server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedwild.contract import Phase, Server
from fedwild.contract.claims import NO_CLAIMS, Claims
from fedwild.contract.engine import Answer, Engine, Job
from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload, check_finite
from fedwild.engines.outbox import Outbox
from fedwild.lifecycle.ledger import Ledger
from fedwild.lifecycle.limits import Update, find_excessive, measure_updates
from fedwild.runs.events import EventLog


@dataclass
class Collected:
    """What the clients of a round sent."""

    accepted: dict[str, Callable[[], Payload]] = field(default_factory=dict)
    """Readers of the accepted replies, by client."""
    updates: dict[str, dict[str, Update]] = field(default_factory=dict)
    """The sizes of the groups of accepted replies, by client."""
    states: dict[str, int] = field(default_factory=dict)
    """The versions of the clients' durable states after their jobs."""
    samples: dict[str, int] = field(default_factory=dict)
    """The number of training samples behind each accepted reply."""
    losses: dict[str, float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    """Why the other answers were rejected."""
    summed: Payload | None = None
    """With secure sums: the one reply that stands for all accepted ones."""
    problem: str | None = None
    """Why the replies must not be merged, if so."""

    @property
    def by_size(self) -> list[str]:
        """The clients whose replies are accepted, those with the largest updates first."""
        sizes = {name: max((u.norm for u in self.updates[name].values()), default=0.0) for name in self.accepted}
        return sorted(sizes, key=lambda name: (-sizes[name], name))

    def reject(self, name: str, reason: str) -> None:
        """Reject a reply that was accepted before."""
        for table in (self.accepted, self.updates, self.states, self.samples, self.losses):
            table.pop(name, None)
        self.reasons.append(reason)

    @property
    def mean_loss(self) -> float | None:
        """The mean over clients in the order of their names."""
        losses = [self.losses[name] for name in sorted(self.losses)]
        return sum(losses) / len(losses) if losses else None


class Exchange:
    """Sends the jobs of rounds and collects the answers."""

    def __init__(self, engine: Engine, spool: Path, log: EventLog, max_reply_bytes: float, max_update: float) -> None:
        self._engine, self._spool, self._log = engine, spool, log
        self._max_reply_bytes, self._max_update = max_reply_bytes, max_update

    def run(
        self, server: Server, ledger: Ledger, phase: Phase, chosen: Sequence[str], claims: Claims = NO_CLAIMS
    ) -> Collected:
        """Send a job to each chosen client, in this order, and return the replies within the limits."""
        collected = self._collect(server, ledger, phase, chosen, claims)
        # Replies that move the server's state much further than the other clients do.
        for name, reason in find_excessive(collected.updates, self._max_update).items():
            self.reject(server, collected, name, reason)
        self._cap(server, collected, claims)
        return collected

    def reject(self, server: Server, collected: Collected, name: str, reason: str) -> None:
        """Reject a reply that has arrived and been counted already."""
        collected.reject(name, reason)
        about = {"phase": server.step.phase, "round": server.step.round, "index": server.step.index}
        # The event `client` has its costs.
        self._log.write("client-failed", **about, client=name, seconds=0.0, bytes_up=0, bytes_down=0, reason=reason)

    def _collect(
        self, server: Server, ledger: Ledger, phase: Phase, chosen: Sequence[str], claims: Claims
    ) -> Collected:
        step, outbox = server.step, Outbox(self._spool, server.step.index)

        def jobs() -> Iterator[Job]:
            for name in chosen:
                path = outbox.file(phase.send(server, name))
                yield Job("local", step, path, name, server.classes.names, ledger.states.get(name))

        def started(job: Job) -> None:
            self._log.announce("client-start", client=job.client, index=job.step.index)

        collected = Collected()
        for answer in self._engine.run(jobs(), started):
            name = answer.job.client or ""
            if answer.disk_failed:
                raise OSError(answer.error)
            reason, payload = self._examine(server, phase, answer, claims)
            info = loggable(payload.info)
            bytes_down = outbox.answered(answer.job.payload)
            ledger.bytes_down += bytes_down
            ledger.bytes_up += answer.size
            if reason is None:
                collected.accepted[name] = answer.read
                collected.updates[name] = measure_updates(server, payload)
                collected.samples[name] = int(payload.info["samples"])
                if answer.state is not None:
                    collected.states[name] = answer.state
                if isinstance(info.get("loss"), float) and math.isfinite(info["loss"]):
                    collected.losses[name] = info["loss"]
            else:
                collected.reasons.append(reason)
            self._log.write(
                "client" if reason is None else "client-failed",
                phase=step.phase,
                round=step.round,
                index=step.index,
                client=name,
                seconds=round(answer.seconds, 4),
                bytes_up=answer.size,
                bytes_down=bytes_down,
                **({"info": info} if reason is None else {"reason": reason, "traceback": answer.traceback}),
                **({"notes": answer.notes} if answer.notes else {}),
            )
        outbox.clear()
        return collected

    def _cap(self, server: Server, collected: Collected, claims: Claims) -> None:
        """Lower the samples of clients that would have more than the share `federation.max_weight` of all."""
        for name, count in claims.cap(collected.samples).items():
            claimed = collected.samples[name]
            if count < claimed:
                collected.accepted[name] = partial(read_with_samples, collected.accepted[name], count)
                server.note(f"{name} is weighted by {count} of its {claimed} samples (federation.max_weight)")

    def _examine(self, server: Server, phase: Phase, answer: Answer, claims: Claims) -> tuple[str | None, Payload]:
        """Return the reason to reject an answer, or None, and its payload."""
        if answer.error is not None:
            return answer.error, Payload()
        if answer.size > self._max_reply_bytes:
            return f"reply of {answer.size} bytes is larger than engine.max_reply_mb allows", Payload()
        try:
            payload = answer.read()
            check_finite(payload)
            phase.check(server, payload)
            claims.check(answer.job.client or "", int(payload.info["samples"]), "info 'samples'")
        except BadReply as problem:
            return f"bad reply: {problem}", Payload()
        except Exception as problem:
            # A check that fails on what a client sent must not end the run.
            return f"bad reply: {type(problem).__name__}: {problem}", Payload()
        return None, payload


def read_with_samples(read: Callable[[], Payload], samples: int) -> Payload:
    """Return a reply with another number of samples behind it."""
    payload = read()
    payload.info["samples"] = samples
    return payload


def loggable(info: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a reply's info that goes into the log: plain values and short lists of them."""

    def plain(value: Any) -> bool:
        return isinstance(value, (int, float, bool, type(None))) or (isinstance(value, str) and len(value) <= 200)

    # What the display shows comes first, so that it is never cut off.
    ordered: dict[str, Any] = {key: info[key] for key in ("samples", "loss") if key in info} | info
    return {
        key: value
        for key, value in list(ordered.items())[:100]
        if plain(value) or (isinstance(value, list) and len(value) <= 100 and all(map(plain, value)))
    }
