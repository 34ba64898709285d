"""The answers of a run's model on the test data, computed once for the whole report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedwild.contract import EVERYONE, Rng
from fedwild.core.text import percent
from fedwild.lifecycle.run import Run
from fedwild.openset.metrics import UNKNOWN
from fedwild.results.pictures.features import drawn

Real = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_SAMPLES = 20_000


@dataclass(frozen=True)
class ModelAnswers:
    """The answers of one model on test samples, and the truth. Arrays are (n,) unless stated otherwise."""

    client: str | None
    """The client whose model answers, if each client has its own."""
    about: str
    """Why this client is shown."""
    rows: Ints
    """Rows of the test data."""
    total: int
    """The number of test samples; `rows` may be a random part of them."""
    classes: tuple[str, ...]
    """The classes that the model knows, in the order of its outputs."""
    logits: Real
    """(n, K)."""
    unknown: Real
    """Unknown scores, larger = more unknown."""
    decision: Ints
    truth: Ints
    """The ids that count as correct in the run's metrics; UNKNOWN for samples of unknown classes."""
    true_names: tuple[str, ...]
    novel: frozenset[str]
    """Names of the classes that clients hold without labels."""
    threshold: float
    is_threshold_fixed: bool
    """Whether the threshold is part of the method; otherwise it is calibrated on validation samples."""

    @cached_property
    def is_known(self) -> NDArray[np.bool_]:
        """Whether each sample belongs to a class that the model knows."""
        return self.truth != UNKNOWN

    @cached_property
    def best(self) -> Ints:
        """The best known class, whatever the threshold."""
        return self.logits.argmax(axis=1)

    @cached_property
    def is_correct(self) -> NDArray[np.bool_]:
        """Whether the best known class is the true one."""
        return (self.best == self.truth) & np.isfinite(self.logits).all(axis=1)

    @cached_property
    def confidence(self) -> Real:
        """The probability of the best known class."""
        # The infinite logits of a diverged model give NaN.
        with np.errstate(invalid="ignore"):
            shares: Real = 1 / np.exp(self.logits - self.logits.max(axis=1, keepdims=True)).sum(axis=1)
        return shares

    @property
    def is_part(self) -> bool:
        return len(self.rows) < self.total


def ask_model(run: Run, client: str | None, about: str, workers: int, max_samples: int = MAX_SAMPLES) -> ModelAnswers:
    """Return the answers of a run's model, or of one client's model, on at most `max_samples` test samples."""
    everything = run.test_rows(client)
    rows = drawn(everything, max_samples, Rng(run.config.seed).child("report"))
    # A finished run ends with an evaluation, which set the thresholds of its final model.
    finished = run.folder.result() is not None
    outcome = run.outcome(client, rows, workers, keep_thresholds=finished)
    server = run.server()
    answering = run.settings.make_method().answers(server)
    unknown, decision = outcome.prediction.unknown.double().numpy(), outcome.decision.numpy()
    stored = server.thresholds.get(client if answering.personal and client else EVERYONE, math.inf)
    return ModelAnswers(
        client=client,
        about=about,
        rows=rows,
        total=len(everything),
        classes=server.classes.names,
        logits=outcome.prediction.logits.double().numpy(),
        unknown=unknown,
        decision=decision,
        truth=answering.truth(outcome).numpy(),
        true_names=tuple(outcome.true_names),
        novel=frozenset(run.experiment.split.novel),
        threshold=threshold_behind(unknown, decision == UNKNOWN, stored),
        is_threshold_fixed=answering.threshold is not None,
    )


def threshold_behind(unknown: Real, rejected: NDArray[np.bool_], stored: float) -> float:
    """Return the stored threshold if it explains which samples were rejected, else one that does.

    The threshold of an unfinished run is calibrated again for the report, so it can differ from the stored one.
    """
    finite = np.isfinite(unknown)
    if ((unknown > stored) == rejected)[finite].all():
        return stored
    below, above = unknown[finite & ~rejected], unknown[finite & rejected]
    if not len(above):
        return math.inf
    lowest = float(above.min())
    return (float(below.max()) + lowest) / 2 if len(below) else float(np.nextafter(lowest, -math.inf))


def worst_and_best(by: dict[str, dict[str, float | None]], clients: Sequence[str]) -> list[tuple[str, str]]:
    """Return the clients whose models are worst and best, by AUROC or else closed accuracy, each with the reason."""
    for key, name in (("auroc", "AUROC"), ("closed_accuracy", "closed accuracy")):
        metrics = {client: by[client].get(key) for client in clients if client in by}
        ranked = sorted((value, client) for client, value in metrics.items() if value is not None)
        if ranked:
            (low, worst), (high, best) = ranked[0], ranked[-1]
            pair = [(worst, f"worst by {name}: {percent(low)}"), (best, f"best by {name}: {percent(high)}")]
            return pair if worst != best else [(worst, f"{name} {percent(low)}")]
    return [(clients[0], "the first client; no client has metrics yet")] if clients else []
