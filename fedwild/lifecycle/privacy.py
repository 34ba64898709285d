"""Differential privacy in the rounds of a run: who takes part, the private mean, and what the rounds have cost."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from fedwild.aggregation.private import private_mean, rescale_mean
from fedwild.contract import Draw, Payload, Phase, Replies, Rng, Server
from fedwild.core.errors import RoundFailed
from fedwild.lifecycle.ledger import Ledger
from fedwild.lifecycle.presence import draw_independently, draw_share
from fedwild.runs.accountant import Mechanism, epsilon_of, largest_epsilon
from fedwild.runs.settings import PrivacySettings
from fedwild.training.private import Protected, sampling_rate, steps_per_epoch

Readers = dict[str, Callable[[], Payload]]
CLIENTS = "*"
"""The unit of client-level privacy in the ledger: any client."""


class Privacy:
    """Protects the rounds of one run. With `privacy.level = none`, it changes nothing."""

    def __init__(self, settings: PrivacySettings, participation: float, clients: int) -> None:
        self.settings, self._participation = settings, participation
        self._expected = participation * clients
        self._secret = Rng(secrets.randbits(63)) if settings.seed == "secret" else None

    def notes(self, server: Server) -> list[str]:
        """Return what the guarantee depends on, for the log."""
        if self.settings.level == "none":
            return []
        notes = []
        if self._secret is None:
            notes.append("noise is drawn from the run's seed, which must stay secret; privacy.seed = 'secret' draws it")
        if server.initial is not None:
            notes.append("epsilon does not include what the run that this one starts from has cost")
        return notes

    def max_update(self, limit: float) -> float:
        """Return the limit on updates relative to other clients': none at client level, where `clip` limits each.

        Whether a reply is accepted must not depend on the other clients, or one client could change more than its own
        term of the sum.
        """
        return math.inf if self.settings.level == "client" else limit

    def draw(self, rng: Rng) -> Draw:
        """Return how participants are drawn: at client level, each one independently."""
        if self.settings.level != "client" or self._participation == 1:
            return draw_share(self._participation, rng)
        return draw_independently(self._participation, self._rng(rng))

    def protect(self, server: Server, accepted: Readers) -> Readers:
        """Return the replies to merge: at client level one reply, which holds the private mean of all."""
        if self.settings.level != "client":
            return accepted
        clip, noise = self.settings.clip, self.settings.noise or 0.0
        sent, generator = server.state.group("model"), self._rng(server.rng).torch("privacy")
        mean = private_mean(sent, Replies(accepted), clip, noise, self._expected, generator)
        reply = Payload.of({"samples": 1}, model=mean)
        return {CLIENTS: lambda: reply}

    def protect_sum(self, server: Server, combined: Payload, clients: int) -> Payload:
        """Return the reply to merge of a secure sum over this number of clients. At client level, it has noise."""
        if self.settings.level != "client":
            return combined
        sent = server.state.group("model")
        return Payload.of({"samples": 1}, model=rescale_mean(sent, combined.group("model"), clients, self._expected))

    def _rng(self, rng: Rng) -> Rng:
        """Return the stream of a round from which noise and participants are drawn."""
        return rng if self._secret is None else self._secret.child(*rng.path)

    def spend(self, ledger: Ledger, phase: Phase, samples: Mapping[str, int]) -> None:
        """Count a round: `samples` has the number of training samples of each client whose reply is merged."""
        noise = self.settings.noise or 0.0
        if self.settings.level == "client":
            count(ledger, CLIENTS, Mechanism(self._participation, noise, 1))
        elif self.settings.level == "sample" and isinstance(phase, Protected):
            size, epochs = phase.params.batch_size, phase.params.epochs
            for name, number in samples.items():
                if number and epochs:
                    times = epochs * steps_per_epoch(size, number)
                    count(ledger, name, Mechanism(sampling_rate(size, number), noise, times))
        limit, cost = self.settings.epsilon, self.report(ledger).get("privacy", {}).get("epsilon")
        if limit is not None and cost is not None and cost > limit * (1 + 1e-6):
            # Clients may have fewer samples than was known before the run.
            raise RoundFailed(
                f"this round would raise epsilon to {cost:.4g}, above privacy.epsilon = {limit:g}: clients have fewer "
                "samples than they declared. The last checkpoint has the model before this round; start a new run "
                "with more noise."
            )

    def report(self, ledger: Ledger) -> dict[str, Any]:
        """Return {"privacy": the guarantee after the rounds so far}; empty without privacy. Without noise, epsilon is
        None."""
        settings = self.settings
        if settings.level == "none":
            return {}
        assert settings.delta is not None
        units = [
            [Mechanism(rate, noise, int(times)) for rate, noise, times in rows] for rows in ledger.privacy.values()
        ]
        single = largest_epsilon((rows[0] for rows in units if len(rows) == 1), settings.delta)
        epsilon = max([single, *(epsilon_of(rows, settings.delta) for rows in units if len(rows) > 1)])
        guarantee = {
            "level": settings.level,
            "epsilon": round(epsilon, 6) if math.isfinite(epsilon) else None,
            "delta": settings.delta,
            "clip": settings.clip,
            "noise": settings.noise,
            "sampling": self._sampling(),
        }
        return {"privacy": guarantee}

    def _sampling(self) -> str:
        """Return the assumption about sampling on which epsilon rests."""
        if self.settings.level == "sample":
            return "each sample is in a step independently with probability batch_size / samples (Poisson)"
        if self._participation == 1:
            return "all clients take part in every round"
        return f"each client takes part in a round independently with probability {self._participation:g} (Poisson)"


def count(ledger: Ledger, unit: str, mechanism: Mechanism) -> None:
    """Add a mechanism to what a unit has spent. Equal mechanisms in a row are one with a larger number of times."""
    rows = ledger.privacy.setdefault(unit, [])
    if rows and rows[-1][:2] == [mechanism.rate, mechanism.noise]:
        rows[-1][2] += mechanism.times
    else:
        rows.append(list(mechanism))
