"""Predictors that methods share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedwild.models import Network
from fedwild.openset import Score
from fedwild.protocol import Prediction, Predictor


class ScoredModel(Predictor):
    """One network over the first `classes` outputs and an unknown score on its outputs."""

    def __init__(self, model: Network, classes: int, score: Score) -> None:
        self.model = model.eval()
        self.classes = classes
        self.score = score

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Prediction:
        outputs = self.model(x)
        return Prediction(outputs[:, : self.classes], self.score.of(outputs, self.classes))

    @torch.inference_mode()
    def embed(self, x: Tensor) -> Tensor:
        return self.model.embed(x)


class Vote(Predictor):
    """The mean of several networks' class probabilities; the unknown score is the mean of theirs."""

    def __init__(self, models: Sequence[Network], classes: int, score: Score) -> None:
        self.models = [model.eval() for model in models]
        self.classes = classes
        self.score = score

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Prediction:
        votes = x.new_zeros(len(x), self.classes)
        unknown = x.new_zeros(len(x), dtype=torch.float64)
        for model in self.models:
            outputs = model(x)
            votes += outputs[:, : self.classes].softmax(dim=1)
            unknown += self.score.of(outputs, self.classes)
        count = max(1, len(self.models))
        # The smallest normal number keeps the logarithm finite where every model gives a class no chance.
        tiny = torch.finfo(votes.dtype).tiny
        return Prediction((votes / count).clamp_min(tiny).log(), unknown / count)
