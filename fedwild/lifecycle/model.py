"""A run's model in memory: its answers, and thresholds that are moved after training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwild.contract import EVERYONE, Predictor, Server
from fedwild.contract.reference import Reference
from fedwild.core.errors import UserError
from fedwild.core.names import UNKNOWN_NAME
from fedwild.data import Samples
from fedwild.evaluation.inference import predict
from fedwild.openset import UNKNOWN, decide

NO_REFERENCE = Reference(torch.empty(0, dtype=torch.float64), 0)


@dataclass(frozen=True)
class Answers:
    """A predictor's answers for a batch."""

    labels: list[str]
    """Class names, or "unknown"."""
    unknown: Tensor
    """Unknown scores (n,), larger = more unknown."""
    threshold: float
    """Scores above it are answered with "unknown"."""
    logits: Tensor
    """Over the known classes (n, K)."""
    classes: tuple[str, ...]
    reference: Reference
    """The scores of known validation samples, and the temperature that calibrates probabilities on them."""

    @property
    def probabilities(self) -> Tensor:
        """Calibrated probabilities over the known classes (n, K)."""
        return (self.logits.double() / self.reference.temperature).softmax(dim=1)

    @property
    def percentiles(self) -> Tensor:
        """The share (n,) of known validation samples with a lower unknown score; NaN without such samples."""
        return self.reference.percentiles(self.unknown)


@dataclass(frozen=True)
class Model:
    """A predictor with all that it needs to answer batch after batch."""

    predictor: Predictor
    classes: tuple[str, ...]
    threshold: float
    reference: Reference
    to_samples: Callable[[Tensor | np.ndarray], Samples]
    device: str

    def answer(self, x: Tensor | np.ndarray) -> Answers:
        """Return answers for inputs x (n, *input_shape)."""
        samples = self.to_samples(x)
        rest = self.classes, self.reference
        if not len(samples):
            return Answers([], torch.empty(0), self.threshold, torch.empty(0, len(self.classes)), *rest)
        prediction = predict(self.predictor, samples, self.device)
        ids = decide(prediction.logits, prediction.unknown, self.threshold).tolist()
        labels = [UNKNOWN_NAME if i == UNKNOWN else self.classes[i] for i in ids]
        return Answers(labels, prediction.unknown, self.threshold, prediction.logits, *rest)


def move_thresholds(server: Server, accept: float | None, threshold: float | None) -> bool:
    """Set the thresholds that the user asks for: by the share of known validation samples to accept, or a number.

    Returns False and changes nothing if both are None.
    """
    if accept is not None and threshold is not None:
        raise UserError("accept and threshold are not allowed together: each of them sets the threshold.")
    if threshold is not None:
        if not isinstance(threshold, int | float) or math.isnan(threshold):
            raise UserError(f"threshold = {threshold} is not allowed: it must be a number.")
        server.thresholds = dict.fromkeys(server.thresholds or [EVERYONE], float(threshold))
    if accept is not None:
        if not isinstance(accept, int | float) or not 0 < accept <= 1:
            raise UserError(f"accept = {accept} is not allowed: it must be greater than 0 and at most 1.")
        if not any(reference.count for reference in server.references.values()):
            raise UserError(
                f"accept = {accept} is not allowed: this run has no scores of validation samples. Set the threshold "
                "itself, or train with data.validation above 0."
            )
        server.thresholds = {name: found.threshold(accept) for name, found in server.references.items()}
    return accept is not None or threshold is not None
