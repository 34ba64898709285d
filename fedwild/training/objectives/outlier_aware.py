"""FedOV's local objective. Diao, Li, He: Towards addressing label skews in one-shot federated learning. ICLR 2023.

PROSER's terms, and outliers that need no second class: destroyed samples x' (section 3.4), and x'', the same samples
moved adversarially to where the model considers them known (section 3.5).
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedwild.data.samples import Normalisation, Samples
from fedwild.models import Network
from fedwild.openset.adversarial import enhance
from fedwild.openset.outliers import OUTLIERS
from fedwild.training.objectives.base import OBJECTIVES, Objective
from fedwild.training.objectives.proser import Proser

Generator = Literal["destruction", "uniform", "crop", "blur", "erase", "paste", "swap", "rotate", "cutpaste", "mixture"]


@OBJECTIVES.add("outlier-aware")
class OutlierAware(Proser):
    """PROSER with destroyed samples and adversarially enhanced ones as unknown (FedOV's local loss)."""

    class Params(Proser.Params):
        outliers: Generator = Field("destruction", description="how x' is made from x")
        destroyed: bool = Field(True, description="whether CE(f(x'), unknown) is part of the loss")
        enhanced: bool = Field(True, description="whether CE(f(x''), unknown) is part of the loss")
        steps: int = Field(5, ge=0, description="adversarial steps from x' to x''")
        step_size: float = Field(0.002, ge=0, description="length of an adversarial step; pixels are in [0, 1]")

    params: Params
    normalisation: Normalisation | None = None
    """That of the client's inputs: outliers are made from pixels."""

    def on(self, samples: Samples, model: Network) -> Objective:
        fitted = copy.copy(super().on(samples, model))
        assert isinstance(fitted, OutlierAware)
        fitted.normalisation = samples.normalisation
        return fitted

    def check(self, model: Network) -> None:
        super().check(model)
        OUTLIERS[self.params.outliers].check(model.input_shape)

    def outliers(self, model: Network, x: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return x' and x'' of a batch, those of them that are switched on."""
        batches: list[Tensor] = []
        p = self.params
        if p.destroyed or p.enhanced:
            destroyed = OUTLIERS[p.outliers](x, generator, self.normalisation)
            if p.destroyed:
                batches.append(destroyed)
            if p.enhanced:
                batches.append(enhance(model, destroyed, p.steps, p.step_size, self.normalisation))
        return batches
