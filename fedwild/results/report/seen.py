"""What a run's model answers on the test data: the one evaluation that a report rests on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedwild.openset.metrics import UNKNOWN
from fedwild.results.pictures.features import drawn
from fedwild.contract import EVERYONE, Method, Server
from fedwild.core.rng import Rng

if TYPE_CHECKING:
    from fedwild.api import Run

Real = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_SAMPLES = 20_000


@dataclass(frozen=True)
class Seen:
    """Answers of one model on test samples, beside the truth; (n,) each unless said otherwise."""

    client: str | None
    """Whose model, where each client has its own."""
    about: str
    """Why this client is shown."""
    rows: Ints
    """Of the data's test part."""
    total: int
    """How many test samples there are; `rows` may be a part of them by lot."""
    classes: tuple[str, ...]
    """The classes that the model knows, in the order of its outputs."""
    logits: Real
    """(n, K)."""
    unknown: Real
    """Unknown scores, larger = more unknown."""
    decision: Ints
    truth: Ints
    """The ids that the run's figures count as right; UNKNOWN for samples of unknown classes."""
    true_names: tuple[str, ...]
    novel: frozenset[str]
    """Names of the classes that clients hold without labels."""
    threshold: float

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        """Which samples are of classes that the model knows."""
        return self.truth != UNKNOWN

    @cached_property
    def closed(self) -> Ints:
        """The best known class, whatever the threshold says."""
        return self.logits.argmax(axis=1)

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """Whether the best known class is the true one."""
        return (self.closed == self.truth) & np.isfinite(self.logits).all(axis=1)

    @cached_property
    def confidence(self) -> Real:
        """The probability of the best known class."""
        # Infinite logits, as of a diverged model, have no confidence.
        with np.errstate(invalid="ignore"):
            shares: Real = 1 / np.exp(self.logits - self.logits.max(axis=1, keepdims=True)).sum(axis=1)
        return shares

    @property
    def is_part(self) -> bool:
        return len(self.rows) < self.total


def seen_of(run: Run, client: str | None, about: str, workers: int, most: int = MAX_SAMPLES) -> Seen:
    """Ask the model of a run, or of one of its clients, about its test data; of much data, a part by lot."""
    everything = run.test_rows(client)
    rows = drawn(everything, most, Rng(run.config.seed).child("report"))
    # A finished run was evaluated last of all, so that its thresholds are the model's.
    finished = run.folder.result() is not None
    outcome = run.outcome(client, rows, workers, keep_thresholds=finished)
    method, server = run.settings.make_method(), run.server()
    unknown = outcome.prediction.unknown.double().numpy()
    decision = outcome.decision.numpy()
    return Seen(
        client=client,
        about=about,
        rows=rows,
        total=len(everything),
        classes=server.classes.names,
        logits=outcome.prediction.logits.double().numpy(),
        unknown=unknown,
        decision=decision,
        truth=method.truth(server, outcome).numpy(),
        true_names=tuple(outcome.true_names),
        novel=frozenset(run.experiment.split.novel),
        threshold=threshold_behind(unknown, decision == UNKNOWN, stored_threshold(method, server, client)),
    )


def stored_threshold(method: Method, server: Server, client: str | None) -> float:
    """The threshold that the run's last evaluation left."""
    return server.thresholds.get(client if method.is_personal(server) and client else EVERYONE, math.inf)


def threshold_behind(unknown: Real, rejected: NDArray[np.bool_], stored: float) -> float:
    """The stored threshold if it explains what was rejected; else one that does, since it was set anew."""
    told = np.isfinite(unknown)
    if ((unknown > stored) == rejected)[told].all():
        return stored
    accepted, refused = unknown[told & ~rejected], unknown[told & rejected]
    if not len(refused):
        return math.inf
    lowest = float(refused.min())
    return (float(accepted.max()) + lowest) / 2 if len(accepted) else float(np.nextafter(lowest, -math.inf))


def extremes(by: dict[str, dict[str, float | None]], owners: Sequence[str]) -> list[tuple[str, str]]:
    """The clients whose own models are worst and best, by AUROC or else by closed accuracy, and why each is shown."""
    for key, name in (("auroc", "AUROC"), ("closed_accuracy", "closed accuracy")):
        figures = {client: by[client].get(key) for client in owners if client in by}
        ranked = sorted((value, client) for client, value in figures.items() if value is not None)
        if ranked:
            (low, worst), (high, best) = ranked[0], ranked[-1]
            lines = [(worst, f"worst by {name}: {100 * low:.1f} %"), (best, f"best by {name}: {100 * high:.1f} %")]
            return lines if worst != best else [(worst, f"{name} {100 * low:.1f} %")]
    return [(owners[0], "the first; none has figures yet")] if owners else []
