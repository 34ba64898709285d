"""Cross-entropy."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedwild.core.settings import Settings
from fedwild.models import Network
from fedwild.training.objectives.base import OBJECTIVES, Objective


@OBJECTIVES.add("ce")
class CrossEntropy(Objective):
    """Cross-entropy over the known classes."""

    class Params(Settings):
        label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of the target spread over all classes")

    protects = ("sample",)

    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        return F.cross_entropy(model(x), y, label_smoothing=self.params.label_smoothing)
