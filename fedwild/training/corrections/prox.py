"""FedProx. Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks. MLSys 2020.

Each client minimises its loss + (mu/2) ||w - w_t||^2, where w_t are the weights that the server sent.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedwild.contract import Client, Payload, Settings
from fedwild.models import Network
from fedwild.training.corrections.base import CORRECTIONS, ClientCorrection, Correction


@CORRECTIONS.add("prox")
class Prox(Correction):
    """FedProx: (mu/2) ||w - w_t||^2 keeps the client's weights near those that the server sent."""

    class Params(Settings):
        mu: float = Field(0.01, ge=0, description="weight of the proximal term; 0 corrects nothing")

    params: Params
    protects = ("client", "sample")

    def at_client(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        # Without a pull, the steps are bit-equal to plain ones.
        return Pull(model, self.params.mu) if self.params.mu else ClientCorrection()


class Pull(ClientCorrection):
    """Adds the penalty's gradient, mu (w - w_t), to that of the loss.

    Autograd through the penalty would give the same gradient, but build a graph over every weight in every step. The
    value of the penalty is not needed: the reported loss is the objective's.
    """

    def __init__(self, model: Network, mu: float) -> None:
        self.mu = mu
        self.parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.anchors = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def before_step(self) -> None:
        for parameter in self.parameters:
            # The penalty depends on every weight, including those that this batch's loss does not depend on.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        drift = torch._foreach_sub(self.parameters, self.anchors)
        torch._foreach_add_(gradients, drift, alpha=self.mu)
