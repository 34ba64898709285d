"""Cross-entropy with a prototype contrastive loss, GAL's known-class learning.

Wang et al.: Federated continual novel class learning (FedNovel). 2024, section 3.3.1. The prototypes are the rows of
the head.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedwild.core.settings import Settings
from fedwild.models import Network
from fedwild.training.objectives.balanced import Balanceable
from fedwild.training.objectives.base import OBJECTIVES


def prototype_contrast(z: Tensor, prototypes: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Return Eq. 4 with the logarithm that its printed form lacks: the mean of -log of

        exp(z_i.p_y / t) / (sum_c exp(z_i.p_c / t) + sum_{j: y_j != y_i} exp(z_i.z_j / t)).

    z (n, d) and prototypes (C, d) are L2-normalised here: raw features saturate at the paper's temperature.
    """
    z, prototypes = F.normalize(z), F.normalize(prototypes)
    to_samples = (z @ z.T / temperature).masked_fill(y[:, None] == y, -torch.inf)
    return F.cross_entropy(torch.cat([z @ prototypes.T / temperature, to_samples], dim=1), y)


@OBJECTIVES.add("prototype-contrast")
class PrototypeContrast(Balanceable):
    """Cross-entropy + eta * contrast with class prototypes and other classes' samples (GAL)."""

    class Params(Settings):
        eta: float = Field(0.1, ge=0, description="weight of the contrastive loss; 0 is plain cross-entropy")
        temperature: float = Field(0.07, gt=0, description="divides the cosine similarities")
        balanced: bool = Field(False, description="add the client's log label shares, as objective balanced does")

    params: Params

    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        z = model.embed(x)
        loss = self.cross_entropy(model.head(z), y)
        if not self.params.eta:
            return loss
        return loss + self.params.eta * prototype_contrast(z, model.head.weight, y, self.params.temperature)
