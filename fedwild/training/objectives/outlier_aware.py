"""FedOV's local objective. Diao, Li, He: Towards addressing label skews in one-shot federated learning. ICLR 2023.

PROSER's terms, and outliers that need no second class: destroyed samples x' (section 3.4), and x'', the same samples
moved adversarially to where the model considers them known (section 3.5).
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedwild.models import Network
from fedwild.openset.adversarial import enhance
from fedwild.openset.outliers import OUTLIERS
from fedwild.training.objectives.base import OBJECTIVES
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
        step_size: float = Field(0.002, ge=0, description="length of an adversarial step; inputs are in [0, 1]")

    params: Params

    def check(self, model: Network) -> None:
        super().check(model)
        OUTLIERS[self.params.outliers].check(model.input_shape)

    def outliers(self, model: Network, x: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return x' and x'' of a batch, those of them that are switched on."""
        batches: list[Tensor] = []
        if self.params.destroyed or self.params.enhanced:
            destroyed = OUTLIERS[self.params.outliers](x, generator)
            if self.params.destroyed:
                batches.append(destroyed)
            if self.params.enhanced:
                batches.append(enhance(model, destroyed, self.params.steps, self.params.step_size))
        return batches
