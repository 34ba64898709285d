"""The predictor with discovered classes."""

from __future__ import annotations

import torch
from torch import Tensor

from fedwild.contract import Prediction
from fedwild.models import Network
from fedwild.openset.predictors import ScoredModel
from fedwild.openset.scores import Score, signals_of


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
        signals = signals_of(self.model, x, self.classes, self.score)
        signals.outputs[:, self.labelled :] -= self.bias
        details = {} if self.origin is None else {"before": self.origin(x).argmax(1)}
        return Prediction(signals.logits, self.score.score(signals, self.fitted), details)
