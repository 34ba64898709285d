"""Predictors that methods share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from fedwild.contract import Prediction, Predictor
from fedwild.models import Network
from fedwild.openset.scores import Fitted, Score, msp, signals_of

NOT_FITTED: Mapping[str, Tensor] = MappingProxyType({})


def unknown_scores(
    model: Network, x: Tensor, classes: int, score: Score, fitted: Fitted = NOT_FITTED
) -> tuple[Tensor, Tensor]:
    """Return a network's outputs (n, K + extra) for a batch, and unknown scores (n,).

    Until its fit step, a score that needs one is replaced by the maximum softmax probability.
    """
    signals = signals_of(model, x, classes, score)
    if score.needs_fit and not fitted:
        return signals.outputs, msp(signals.logits)
    return signals.outputs, score.score(signals, fitted)


class ScoredModel(Predictor):
    """One network over the first `classes` outputs, with an unknown score."""

    def __init__(self, model: Network, classes: int, score: Score, fitted: Fitted = NOT_FITTED) -> None:
        self.model = model.eval()
        self.classes = classes
        self.score = score
        self.fitted = fitted

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Prediction:
        outputs, unknown = unknown_scores(self.model, x, self.classes, self.score, self.fitted)
        return Prediction(outputs[:, : self.classes], unknown)

    @torch.inference_mode()
    def embed(self, x: Tensor) -> Tensor:
        return self.model.embed(x)


class Vote(Predictor):
    """The mean of several networks' class probabilities; the unknown score is the mean of theirs."""

    def __init__(self, members: Mapping[str, Network], classes: int, score: Score) -> None:
        self.members = {client: model.eval() for client, model in members.items()}
        self.classes = classes
        self.score = score

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Prediction:
        votes = x.new_zeros(len(x), self.classes)
        unknown = x.new_zeros(len(x), dtype=torch.float64)
        for model in self.members.values():
            outputs, scores = unknown_scores(model, x, self.classes, self.score)
            votes += outputs[:, : self.classes].softmax(dim=1)
            unknown += scores
        count = max(1, len(self.members))
        # The smallest normal number keeps the logarithm finite if no model gives a class any probability.
        tiny = torch.finfo(votes.dtype).tiny
        return Prediction((votes / count).clamp_min(tiny).log(), unknown / count)
