"""Unknown scores u(x): larger = more unknown.

A score looks at a network's outputs, at its embeddings, or at both (`Signals`). A score with a fit step has the clients
send sums over their training samples once, after training, and the server fits the score to their total.

Scores are computed in float64 for logits of any type: in float32 the softmax of a confident network rounds to
exactly 1, which would tie samples that the logits distinguish.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from torch import Tensor, special

from fedwild.core.component import Component
from fedwild.core.registry import Registry
from fedwild.core.settings import Settings
from fedwild.models import Network

Fitted = Mapping[str, Tensor]
"""What the fit step left, by name; empty for a score without one."""


@dataclass(frozen=True)
class Signals:
    """What a score may look at, for n samples."""

    outputs: Tensor
    """All outputs of the network (n, K + extra), of which the first K are classes."""
    classes: int
    """K."""
    embeddings: Tensor | None = None
    """(n, d), if the score needs them."""

    @property
    def logits(self) -> Tensor:
        """The outputs of the classes (n, K)."""
        return self.outputs[:, : self.classes]


class Score(Component, ABC):
    """An unknown score. Register it, or name it by its import path."""

    needs_unknown: ClassVar[bool] = False
    """Whether it reads an output for "unknown", which only some objectives train."""
    needs_embeddings: ClassVar[bool] = False
    needs_fit: ClassVar[bool] = False
    """Whether it has a fit step."""

    def sums(self, signals: Signals, y: Tensor) -> dict[str, Tensor]:
        """Return a client's sums over training samples with labels y (n,). Their shapes do not depend on n."""
        return {}

    def fit(self, total: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what `score` needs, from the sums over all clients (float64)."""
        return dict(total)

    @abstractmethod
    def score(self, signals: Signals, fitted: Fitted) -> Tensor:
        """Return unknown scores (n,) in float64."""


SCORES: Registry[Score] = Registry("score", Score)


def msp(logits: Tensor) -> Tensor:
    """Maximum softmax probability: u = -max_k p_k. With K = 1 it is -1 for every sample."""
    return -_float64(logits).softmax(dim=1).amax(dim=1)


def maxlogit(logits: Tensor) -> Tensor:
    """Maximum logit (MLS): u = -max_k z_k, on raw logits, before any softmax."""
    return -_float64(logits).amax(dim=1)


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Free energy: u = -T * logsumexp(z / T); close to `maxlogit` for a small temperature T."""
    return -temperature * (_float64(logits) / temperature).logsumexp(dim=1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax, in nats, 0 to log K. With K = 1 it is 0 for every sample."""
    return special.entr(_float64(logits).softmax(dim=1)).sum(dim=1)


def unknown_probability(outputs: Tensor) -> Tensor:
    """u = p_unknown, the softmax probability of the last of K + 1 outputs."""
    return _float64(outputs).softmax(dim=1)[:, -1]


def placeholder(outputs: Tensor, temperature: float = 1024.0) -> Tensor:
    """PROSER: u = q_unknown - max_k q_k, where q is the softmax of all K + 1 outputs at a temperature."""
    q = (_float64(outputs) / temperature).softmax(dim=1)
    return q[:, -1] - q[:, :-1].amax(dim=1)


@SCORES.add("msp")
class MaximumProbability(Score):
    """Minus the largest softmax probability."""

    def score(self, signals: Signals, fitted: Fitted) -> Tensor:
        return msp(signals.logits)


@SCORES.add("maxlogit")
class MaximumLogit(Score):
    """Minus the largest raw logit."""

    def score(self, signals: Signals, fitted: Fitted) -> Tensor:
        return maxlogit(signals.logits)


@SCORES.add("energy")
class Energy(Score):
    """Free energy of the logits at a temperature."""

    class Params(Settings):
        temperature: float = Field(1.0, gt=0, description="divides the logits before the log-sum-exp")

    params: Params

    def score(self, signals: Signals, fitted: Fitted) -> Tensor:
        return energy(signals.logits, self.params.temperature)


@SCORES.add("entropy")
class Entropy(Score):
    """Entropy of the softmax."""

    def score(self, signals: Signals, fitted: Fitted) -> Tensor:
        return entropy(signals.logits)


@SCORES.add("unknown")
class UnknownProbability(Score):
    """Probability of the unknown output."""

    needs_unknown = True

    def score(self, signals: Signals, fitted: Fitted) -> Tensor:
        return unknown_probability(signals.outputs)


@SCORES.add("proser")
class Placeholder(Score):
    """Probability of the unknown output minus the largest other one, at a temperature."""

    class Params(Settings):
        temperature: float = Field(1024.0, gt=0, description="divides the outputs before the softmax")

    needs_unknown = True
    params: Params

    def score(self, signals: Signals, fitted: Fitted) -> Tensor:
        return placeholder(signals.outputs, self.params.temperature)


def signals_of(model: Network, x: Tensor, classes: int, score: Score) -> Signals:
    """Return what a score looks at for a batch x (n, *shape)."""
    if not score.needs_embeddings:
        return Signals(model(x), classes)
    embeddings = model.embed(x)
    return Signals(model.head(embeddings), classes, embeddings)


def _float64(logits: Tensor) -> Tensor:
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must have shape (n, K) with K >= 1, not {tuple(logits.shape)}.")
    return logits.double()
