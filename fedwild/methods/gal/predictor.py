"""The predictor with discovered classes."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwild.contract import Prediction
from fedwild.models import Network
from fedwild.openset import Score
from fedwild.openset.predictors import ScoredModel


class NovelModel(ScoredModel):
    """A scored network that answers with a novel class only if its logit is larger by more than a bias."""

    def __init__(
        self, model: Network, classes: int, score: Score, labelled: int, bias: float, origin: Network | None
    ) -> None:
        """`origin` is the network before the first discovery, if there was one."""
        super().__init__(model, classes, score)
        self.labelled, self.bias, self.origin = labelled, bias, origin

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Prediction:
        outputs = self.model(x)
        outputs[:, self.labelled :] -= self.bias
        details = {} if self.origin is None else {"before": self.origin(x).argmax(1)}
        return Prediction(outputs[:, : self.classes], self.score.of(outputs, self.classes), details)
