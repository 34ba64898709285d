"""Unknown scores u(x) on logits: (n, K) in, (n,) out, larger = more unknown.

Computed in float64 whatever the logits' type: in float32 the softmax of a confident network rounds to exactly
1, which would tie samples that the logits tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from torch import Tensor, special

from fedwild.errors import UserError, unknown_name
from fedwild.hyper import Hyper, validated


def msp(logits: Tensor) -> Tensor:
    """Maximum softmax probability: u = -max_k p_k. With K = 1 it is -1 for every sample and tells nothing."""
    return -_float64(logits).softmax(dim=1).amax(dim=1)


def maxlogit(logits: Tensor) -> Tensor:
    """Maximum logit (MLS): u = -max_k z_k, raw logits, before any softmax."""
    return -_float64(logits).amax(dim=1)


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Free energy: u = -T * logsumexp(z / T); close to `maxlogit` for a small temperature T."""
    return -temperature * (_float64(logits) / temperature).logsumexp(dim=1)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the softmax, in nats, 0 to log K. With K = 1 it is 0 for every sample and tells nothing."""
    return special.entr(_float64(logits).softmax(dim=1)).sum(dim=1)


def unknown_probability(outputs: Tensor) -> Tensor:
    """u = p_unknown, the softmax probability of the last of K + 1 outputs."""
    return _float64(outputs).softmax(dim=1)[:, -1]


def placeholder(outputs: Tensor, temperature: float = 1024.0) -> Tensor:
    """PROSER's: u = q_unknown - max_k q_k, where q is the softmax of all K + 1 outputs at a temperature."""
    q = (_float64(outputs) / temperature).softmax(dim=1)
    return q[:, -1] - q[:, :-1].amax(dim=1)


class NoParams(Hyper):
    """A score without settings."""


class EnergyParams(Hyper):
    """Settings of the energy score."""

    temperature: float = Field(1.0, gt=0, description="Divides the logits before the log-sum-exp.")


class PlaceholderParams(Hyper):
    """Settings of PROSER's score."""

    temperature: float = Field(1024.0, gt=0, description="Divides the outputs before the softmax.")


@dataclass(frozen=True)
class ScoreEntry:
    """One registered score: its name, one line about it, its settings and its function of logits."""

    name: str
    summary: str
    Params: type[Hyper]
    function: Callable[..., Tensor]
    reads_unknown: bool = False
    """Whether the function takes the unknown output (n, K + 1), too, which only some objectives train."""


@dataclass(frozen=True)
class Score:
    """A score with its settings; call it on logits (n, K) for unknown scores (n,)."""

    entry: ScoreEntry
    params: Hyper

    @property
    def name(self) -> str:
        """The name it is registered under."""
        return self.entry.name

    def __call__(self, logits: Tensor) -> Tensor:
        """Unknown scores (n,), float64, larger = more unknown."""
        return self.entry.function(logits, **self.params.model_dump())

    def of(self, outputs: Tensor, classes: int) -> Tensor:
        """The same from all outputs of a network (n, K + extra), of which K are classes."""
        return self(outputs if self.entry.reads_unknown else outputs[:, :classes])


SCORES: dict[str, ScoreEntry] = {
    entry.name: entry
    for entry in (
        ScoreEntry("msp", "Minus the largest softmax probability.", NoParams, msp),
        ScoreEntry("maxlogit", "Minus the largest raw logit.", NoParams, maxlogit),
        ScoreEntry("energy", "Free energy of the logits at a temperature.", EnergyParams, energy),
        ScoreEntry("entropy", "Entropy of the softmax.", NoParams, entropy),
        ScoreEntry("unknown", "Probability of the unknown output.", NoParams, unknown_probability, reads_unknown=True),
        ScoreEntry(
            "proser",
            "Probability of the unknown output minus the largest other one, at a temperature.",
            PlaceholderParams,
            placeholder,
            reads_unknown=True,
        ),
    )
}


def make_score(name: str, params: Mapping[str, Any] | None = None) -> Score:
    """The score registered as `name` with the given settings; what is wrong with them is a UserError."""
    if name not in SCORES:
        raise unknown_name("score", name, SCORES)
    entry = SCORES[name]
    given = {} if params is None else params
    if not isinstance(given, Mapping):
        raise UserError(f"score = {given!r} is not allowed: the settings of score {name!r} must be a table.")
    return Score(entry, validated(entry.Params, given, "score"))


def _float64(logits: Tensor) -> Tensor:
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise ValueError(f"logits must have shape (n, K) with K >= 1, not {tuple(logits.shape)}.")
    return logits.double()
