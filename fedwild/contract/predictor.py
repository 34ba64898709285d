"""What answers for a batch of inputs, and its answers on the test set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from torch import Tensor

from fedwild.core.errors import UserError


class Prediction(NamedTuple):
    """Answers for a batch: logits (n, K) over the known classes and unknown scores (n,), larger = more unknown."""

    logits: Tensor
    unknown: Tensor
    details: Mapping[str, Tensor] = MappingProxyType({})
    """Whatever else `Method.measure` wants to see, a row (n, ...) per sample."""


@dataclass(frozen=True)
class Outcome:
    """A predictor's answers on the test set, beside the truth."""

    prediction: Prediction
    decision: Tensor
    """Class ids in the server's registry (n,), or UNKNOWN."""
    truth: Tensor
    """The same for the true classes (n,): UNKNOWN where the registry does not have the class."""
    true_names: Sequence[str]
    """The true classes' names (n,), also of classes the registry does not have."""
    novel: tuple[tuple[str, ...], ...] = ()
    """The classes that clients hold without labels, by the stage in which they turn up."""


class Predictor(ABC):
    """Answers with a class or with UNKNOWN: unknown is what scores above a threshold."""

    @abstractmethod
    def predict(self, x: Tensor) -> Prediction:
        """Logits and unknown scores for a batch x (n, *input_shape), in evaluation mode."""

    def embed(self, x: Tensor) -> Tensor:
        """Embeddings (n, d) of a batch, the input of the head that answers; an ensemble has none in common."""
        raise UserError(f"{type(self).__name__} does not answer with one network, so it has no common embedding.")
