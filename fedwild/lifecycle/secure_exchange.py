"""A round with secure sums: the server gets the sum of what the clients send, and no single reply.

The steps are those of `aggregation/secure/protocol.py`. A client that fails in a step drops out of the round. If it has
shared its keys before, the others reveal what removes its masks.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwild.aggregation.secure.fixed_point import FixedPoint
from fedwild.aggregation.secure.protocol import MIN_CLIENTS, SEALED_BYTES, PublicKeys
from fedwild.aggregation.secure.unmasking import ServerRound, TooFewShares, check_shares
from fedwild.aggregation.secure.vectors import Layout
from fedwild.contract import EVERYONE, Payload, Phase, Server
from fedwild.contract.claims import NO_CLAIMS, Claims
from fedwild.contract.engine import Answer, Engine, Job, Kind
from fedwild.contract.sums import Summable, sums_of
from fedwild.core.errors import BadReply, RoundFailed, UserError
from fedwild.core.payload import check_like
from fedwild.engines.outbox import Outbox
from fedwild.engines.secret_files import remove_secrets
from fedwild.engines.secure_jobs import ABOUT, to_rows, to_tensor
from fedwild.lifecycle.exchange import Collected
from fedwild.lifecycle.ledger import Ledger
from fedwild.lifecycle.limits import find_excessive, measure_updates
from fedwild.runs.events import EventLog
from fedwild.runs.settings import FederationSettings

MAX_SAMPLES = 2**20
"""The weight of a client up to which values may reach `federation.secure_range`."""
NOTHING_KNOWN: dict[str, Any] = {"info": {}}
"""What the log says about a masked reply."""
Read = Callable[[str, Payload], None]
"""Takes a client's answer to a step, or raises `BadReply`."""


@dataclass(frozen=True)
class SecureExchange:
    """Runs rounds with secure sums."""

    engine: Engine
    spool: Path
    log: EventLog
    max_reply_bytes: float
    settings: FederationSettings
    folder: Path
    """The run folder, which messages name."""

    def run(
        self, server: Server, ledger: Ledger, phase: Phase, chosen: Sequence[str], claims: Claims = NO_CLAIMS
    ) -> Collected:
        """Return the clients whose replies are in the sum, and the combined reply."""
        # Executors cache requests by file name, so that all steps of a round share one outbox.
        round_ = SecureRound(self, server, ledger, phase, Outbox(self.spool, server.step.index), len(chosen), claims)
        try:
            return round_.run(chosen)
        finally:
            round_.outbox.clear()
            remove_secrets(self.spool)


@dataclass
class SecureRound:
    """One round: the state of the sum, and what the steps cost."""

    exchange: SecureExchange
    server: Server
    ledger: Ledger
    phase: Phase
    outbox: Outbox
    clients: int
    claims: Claims
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    collected: Collected = field(default_factory=Collected)
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0

    def run(self, chosen: Sequence[str]) -> Collected:
        """Take all steps with the chosen clients."""
        assert isinstance(self.phase, Summable)
        layout = Layout.of(sums_of(self.phase), self.phase.summed_groups(self.server))
        code = self.code()
        sum_ = ServerRound(self.id, self.threshold, self.advertise(chosen))
        sealed = self.share(sum_)
        total = self.add_masked(sum_, [name for name in chosen if name in sum_.commitments], layout, code)
        self.unmask(sum_, sealed, total)
        values = code.decode(total)
        combined = self.phase.from_sums(layout.to_reply(values, len(sum_.survivors)))
        self.collected.problem = self.find_excess(values, code, combined, sum_.survivors)
        self.collect(sum_, combined)
        return self.collected

    def find_excess(
        self, values: np.ndarray, code: FixedPoint, combined: Payload, survivors: Sequence[str]
    ) -> str | None:
        """Return what shows that a client sent more than it may. Single vectors cannot be checked, their sum can."""
        if not np.abs(values).max() <= self.clients * code.limit + code.max_error:
            return "a client added values outside the range of secure sums"
        samples, declared = combined.info["samples"], [self.claims.declared.get(name) for name in survivors]
        if samples < 0 or (None not in declared and samples > sum(filter(None, declared))):
            return f"the sum has {samples} samples, which is not what the clients declared when they joined"
        # There are no other sums to compare with, so only what the server has a counterpart for can be judged.
        updates = {g: update for g, update in measure_updates(self.server, combined).items() if update.reference}
        return find_excessive({EVERYONE: updates}, self.exchange.settings.max_update).get(EVERYONE)

    @property
    def threshold(self) -> int:
        """The number of clients that each step needs: 2 t > n, so that no two disjoint groups have as many."""
        wanted = math.ceil(self.exchange.settings.secure_threshold * self.clients)
        return max(MIN_CLIENTS, self.clients // 2 + 1, wanted)

    def code(self) -> FixedPoint:
        """Return the encoding, with room for the sum of all chosen clients."""
        limit = self.exchange.settings.secure_range * MAX_SAMPLES
        try:
            return FixedPoint(limit, self.clients)
        except ValueError as error:
            raise UserError(
                f"federation.secure_range = {self.exchange.settings.secure_range:g} is too large: {error}."
            ) from error

    # --- steps ---------------------------------------------------------------------------------------------

    def advertise(self, chosen: Sequence[str]) -> dict[str, PublicKeys]:
        """Return the public keys of the clients that take part."""
        keys: dict[str, PublicKeys] = {}

        def read(name: str, reply: Payload) -> None:
            (row,) = to_rows(reply.tensors["keys"])
            keys[name] = PublicKeys.from_bytes(row)

        request = Payload(info={ABOUT: {"round": self.id}})
        self.step("advertise", chosen, lambda _: request, read)
        return keys

    def share(self, sum_: ServerRound) -> dict[str, Tensor]:
        """Return the sealed shares of each client that sent some, uint8 (n - 1, bytes), in the order of receivers."""
        sealed: dict[str, Tensor] = {}
        spec = {"sealed": torch.empty(len(sum_.members) - 1, SEALED_BYTES, dtype=torch.uint8)}
        spec["commitment"] = torch.empty(1, 32, dtype=torch.uint8)

        def read(name: str, reply: Payload) -> None:
            check_like(reply.tensors, spec, "the shares")
            sealed[name] = reply.tensors["sealed"].clone()
            (sum_.commitments[name],) = to_rows(reply.tensors["commitment"])

        about = {"round": self.id, "threshold": sum_.threshold, "members": list(sum_.members)}
        keys = to_tensor([keys.to_bytes() for keys in sum_.members.values()])
        request = Payload({"keys": keys}, {ABOUT: about})
        self.step("share", list(sum_.members), lambda _: request, read)
        return sealed

    def add_masked(self, sum_: ServerRound, names: Sequence[str], layout: Layout, code: FixedPoint) -> np.ndarray:
        """Let clients train, and return the sum of their masked vectors, uint64 (d,)."""
        total = np.zeros(layout.size, dtype=np.uint64)
        spec = {"masked": torch.empty(layout.size, dtype=torch.int64, device="meta")}
        about = {
            "round": self.id,
            "sharers": sum_.sharers,
            "layout": layout.digest(),
            "limit": code.limit,
            "clients": code.clients,
        }

        def request(name: str) -> Payload:
            payload = self.phase.send(self.server, name)
            return Payload(payload.tensors, {**payload.info, ABOUT: about})

        def read(name: str, reply: Payload) -> None:
            check_like(reply.tensors, spec, "the masked vector")
            np.add(total, reply.tensors["masked"].numpy().view(np.uint64), out=total)
            sum_.survivors.append(name)

        self.step("masked", names, request, read)
        sum_.survivors.sort()
        return total

    def unmask(self, sum_: ServerRound, sealed: dict[str, Tensor], total: np.ndarray) -> None:
        """Remove the masks from the sum, in place."""
        places = {name: place for place, name in enumerate(sum_.members)}
        revealed: dict[str, dict[str, bytes]] = {}

        def request(name: str) -> Payload:
            senders = [sender for sender in sum_.sharers if sender != name]
            # A sender has no row for itself.
            rows = [sealed[s][places[name] - (places[name] > places[s])] for s in senders]
            about = {"round": self.id, "survivors": sum_.survivors, "senders": senders}
            return Payload({"sealed": torch.stack(rows)}, {ABOUT: about})

        def read(name: str, reply: Payload) -> None:
            shares = dict(zip(reply.info["names"], to_rows(reply.tensors["shares"]), strict=True))
            check_shares(shares, sum_.sharers)
            revealed[name] = shares

        self.step("unmask", sum_.survivors, request, read)
        try:
            sum_.unmask(total, revealed)
        except TooFewShares as problem:
            raise self.failed(f"the secure sum cannot be unmasked: {problem}.") from problem
        for name in sorted(sum_.liars):
            self.server.note(f"{name} sent a wrong share of a secure sum, which was ignored")

    def step(self, kind: Kind, names: Sequence[str], request: Callable[[str], Payload], read: Read) -> None:
        """Send a step's job to each client and read the answers. Raise `RoundFailed` if too few succeed."""
        succeeded = 0
        for answer in self.exchange.engine.run(self.jobs(kind, names, request), self.started):
            if answer.disk_failed:
                raise OSError(answer.error)
            succeeded += self.take(kind, answer, read)
        if succeeded < self.threshold:
            reasons = self.collected.reasons
            common = f" Most frequent reason: {max(reasons, key=reasons.count)}." if reasons else ""
            raise self.failed(
                f"{succeeded} of {self.clients} clients completed the step {kind!r} of the secure sum, and "
                f"{self.threshold} are needed (federation.secure_threshold = "
                f"{self.exchange.settings.secure_threshold:.3g}).{common}"
            )

    def jobs(self, kind: Kind, names: Sequence[str], request: Callable[[str], Payload]) -> Iterator[Job]:
        for name in names:
            path = self.outbox.file(request(name))
            yield Job(kind, self.server.step, path, name, self.server.classes.names, self.ledger.states.get(name))

    def started(self, job: Job) -> None:
        if job.kind == "masked":
            self.exchange.log.announce("client-start", client=job.client, index=job.step.index)

    # --- answers --------------------------------------------------------------------------------------------

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
        if answer.size > self.exchange.max_reply_bytes:
            return f"reply of {answer.size} bytes is larger than engine.max_reply_mb allows"
        try:
            read(answer.job.client or "", answer.read())
        except BadReply as problem:
            return f"bad reply: {problem}"
        except (KeyError, TypeError, ValueError, RuntimeError) as problem:
            return f"bad reply: {type(problem).__name__}: {problem}"
        return None

    def log_client(self, answer: Answer, reason: str | None, bytes_up: int, bytes_down: int) -> None:
        self.exchange.log.write(
            "client" if reason is None else "client-failed",
            **self.about(),
            client=answer.job.client,
            seconds=round(answer.seconds, 4),
            bytes_up=bytes_up,
            bytes_down=bytes_down,
            **(NOTHING_KNOWN if reason is None else {"reason": reason, "traceback": answer.traceback}),
        )

    def collect(self, sum_: ServerRound, combined: Payload) -> None:
        """Record the sum and who is in it."""
        self.collected.summed = combined
        self.collected.accepted = dict.fromkeys(sum_.survivors, lambda: combined)
        if "loss" in combined.info:
            self.collected.losses[EVERYONE] = combined.info["loss"]
        self.exchange.log.write(
            "secure-sum",
            **self.about(),
            clients=self.clients,
            summed=len(sum_.survivors),
            samples=combined.info["samples"],
            seconds=round(self.seconds, 4),
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
        )

    def about(self) -> dict[str, str | int]:
        step = self.server.step
        return {"phase": step.phase, "round": step.round, "index": step.index}

    def failed(self, reason: str) -> RoundFailed:
        step = self.server.step
        return RoundFailed(
            f"round {step.index + 1} ({step.phase}): {reason} `fedwild resume {self.exchange.folder}` tries the round "
            "again with new keys."
        )
