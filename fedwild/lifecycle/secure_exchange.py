"""A round with secure sums: the server gets the sum of what the clients send, and no single reply.

The steps are those of `aggregation/secure/protocol.py`. A client that fails in a step drops out of the round. If it has
shared its keys before, the others reveal what removes its masks.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedwild.aggregation.secure.fixed_point import FixedPoint
from fedwild.aggregation.secure.protocol import SEALED_BYTES, PublicKeys
from fedwild.aggregation.secure.unmasking import ServerRound, TooFewShares, check_shares
from fedwild.aggregation.secure.vectors import Layout
from fedwild.contract import EVERYONE, Payload, Phase, Server
from fedwild.contract.claims import NO_CLAIMS, Claims
from fedwild.contract.sums import Summable, sums_of
from fedwild.core.errors import UserError
from fedwild.core.payload import check_like
from fedwild.engines.outbox import Outbox
from fedwild.engines.secret_files import remove_secrets
from fedwild.engines.secure_jobs import ABOUT, to_rows, to_tensor
from fedwild.lifecycle.exchange import Collected
from fedwild.lifecycle.ledger import Ledger
from fedwild.lifecycle.limits import find_excessive, measure_updates
from fedwild.lifecycle.secure_steps import Means, Steps

MAX_SAMPLES = 2**20
"""The weight of a client up to which values may reach `federation.secure_range`."""


@dataclass(frozen=True)
class SecureExchange(Means):
    """Runs rounds with secure sums."""

    def run(
        self, server: Server, ledger: Ledger, phase: Phase, chosen: Sequence[str], claims: Claims = NO_CLAIMS
    ) -> Collected:
        """Return the clients whose replies are in the sum, and the combined reply."""
        # Executors cache requests by file name, so that all steps of a round share one outbox.
        steps = Steps(self, server, ledger, Outbox(self.spool, server.step.index), len(chosen))
        try:
            return SecureRound(steps, phase, claims).run(chosen)
        finally:
            steps.outbox.clear()
            remove_secrets(self.spool)


@dataclass
class SecureRound:
    """The sum of one round."""

    steps: Steps
    phase: Phase
    claims: Claims
    id: str = field(default_factory=lambda: secrets.token_hex(16))

    def run(self, chosen: Sequence[str]) -> Collected:
        """Take all steps with the chosen clients."""
        assert isinstance(self.phase, Summable)
        layout = Layout.of(sums_of(self.phase), self.phase.summed_groups(self.steps.server))
        code = self.code()
        sum_ = ServerRound(self.id, self.steps.threshold, self.advertise(chosen))
        sealed = self.share(sum_)
        total = self.add_masked(sum_, [name for name in chosen if name in sum_.commitments], layout, code)
        self.unmask(sum_, sealed, total)
        values = code.decode(total)
        combined = self.phase.from_sums(layout.to_reply(values, len(sum_.survivors)))
        self.steps.collected.problem = self.find_excess(values, code, combined, sum_.survivors)
        self.collect(sum_, combined)
        return self.steps.collected

    def find_excess(
        self, values: np.ndarray, code: FixedPoint, combined: Payload, survivors: Sequence[str]
    ) -> str | None:
        """Return what shows that a client sent more than it may. Single vectors cannot be checked, their sum can."""
        if not np.abs(values).max() <= self.steps.clients * code.limit + code.max_error:
            return "a client added values outside the range of secure sums"
        samples, declared = combined.info["samples"], [self.claims.declared.get(name) for name in survivors]
        if samples < 0 or (None not in declared and samples > sum(filter(None, declared))):
            return f"the sum has {samples} samples, which is not what the clients declared when they joined"
        # There are no other sums to compare with, so only what the server has a counterpart for can be judged.
        updates = {g: update for g, update in measure_updates(self.steps.server, combined).items() if update.reference}
        return find_excessive({EVERYONE: updates}, self.steps.means.settings.max_update).get(EVERYONE)

    def code(self) -> FixedPoint:
        """Return the encoding, with room for the sum of all chosen clients."""
        limit = self.steps.means.settings.secure_range * MAX_SAMPLES
        try:
            return FixedPoint(limit, self.steps.clients)
        except ValueError as error:
            raise UserError(
                f"federation.secure_range = {self.steps.means.settings.secure_range:g} is too large: {error}."
            ) from error

    def advertise(self, chosen: Sequence[str]) -> dict[str, PublicKeys]:
        """Return the public keys of the clients that take part."""
        keys: dict[str, PublicKeys] = {}

        def read(name: str, reply: Payload) -> None:
            (row,) = to_rows(reply.tensors["keys"])
            keys[name] = PublicKeys.from_bytes(row)

        request = Payload(info={ABOUT: {"round": self.id}})
        self.steps.take_step("advertise", chosen, lambda _: request, read)
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
        self.steps.take_step("share", list(sum_.members), lambda _: request, read)
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
            payload = self.phase.send(self.steps.server, name)
            return Payload(payload.tensors, {**payload.info, ABOUT: about})

        def read(name: str, reply: Payload) -> None:
            check_like(reply.tensors, spec, "the masked vector")
            np.add(total, reply.tensors["masked"].numpy().view(np.uint64), out=total)
            sum_.survivors.append(name)

        self.steps.take_step("masked", names, request, read)
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

        self.steps.take_step("unmask", sum_.survivors, request, read)
        try:
            sum_.unmask(total, revealed)
        except TooFewShares as problem:
            raise self.steps.failed(f"the secure sum cannot be unmasked: {problem}.") from problem
        for name in sorted(sum_.liars):
            self.steps.server.note(f"{name} sent a wrong share of a secure sum, which was ignored")

    def collect(self, sum_: ServerRound, combined: Payload) -> None:
        """Record the sum and who is in it."""
        self.steps.collected.summed = combined
        self.steps.collected.accepted = dict.fromkeys(sum_.survivors, lambda: combined)
        if "loss" in combined.info:
            self.steps.collected.losses[EVERYONE] = combined.info["loss"]
        self.steps.means.log.write(
            "secure-sum",
            **self.steps.about(),
            clients=self.steps.clients,
            summed=len(sum_.survivors),
            samples=combined.info["samples"],
            seconds=round(self.steps.seconds, 4),
            bytes_up=self.steps.bytes_up,
            bytes_down=self.steps.bytes_down,
        )
