"""Predictors, their answers for a batch, and their answers on the test set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from fedwild.core.errors import UserError
from fedwild.models import Network


class Prediction(NamedTuple):
    """Answers for a batch: logits (n, K) over the known classes and unknown scores (n,), larger = more unknown."""

    logits: Tensor
    unknown: Tensor
    details: Mapping[str, Tensor] = MappingProxyType({})
    """Other tensors for `Method.measure`, with a row per sample (n, ...)."""


@dataclass(frozen=True)
class Outcome:
    """A predictor's answers on the test set, with the truth."""

    prediction: Prediction
    decision: Tensor
    """Class ids in the server's registry (n,), or UNKNOWN."""
    truth: Tensor
    """True class ids (n,), UNKNOWN for classes that are not in the registry."""
    true_names: Sequence[str]
    """Names of the true classes (n,), including those that are not in the registry."""
    novel: tuple[tuple[str, ...], ...] = ()
    """Classes of the clients' unlabelled samples, by the stage in which they occur."""


class Predictor(ABC):
    """Gives logits and unknown scores. A score above the threshold means UNKNOWN."""

    members: Mapping[str, Network] = MappingProxyType({})
    """The networks of an ensemble, by client; empty if one network answers."""

    @abstractmethod
    def predict(self, x: Tensor) -> Prediction:
        """Return logits and unknown scores for a batch x (n, *input_shape), in evaluation mode."""

    def embed(self, x: Tensor) -> Tensor:
        """Return the embeddings (n, d) of a batch, the input of the head. An ensemble has no common embedding."""
        raise UserError(
            f"{type(self).__name__} does not answer with one network, so it has no common embedding. "
            "Choose one of its members, or distil it."
        )
