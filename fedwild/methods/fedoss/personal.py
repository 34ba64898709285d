"""Training of the network together with the client's personal head: Eq. 12 and 14."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedwild.models import Network
from fedwild.training.corrections import ClientCorrection
from fedwild.training.loop import Descent
from fedwild.training.objectives import Objective
from fedwild.training.optimisers import Optimiser


class PersonalTraining(Descent):
    """Trains the network, and a personal head on the network's detached activations."""

    def __init__(self, cut: str, head: nn.Module, optimiser: Optimiser, log_prior: Tensor) -> None:
        self.cut, self.head, self.optimiser = cut, head, optimiser
        self.log_prior = log_prior
        """(K,) added to the logits of the known classes: the client's log label shares, or zeros."""

    def gradients(
        self,
        model: Network,
        objective: Objective,
        client_correction: ClientCorrection,
        x: Tensor,
        y: Tensor,
        draws: torch.Generator,
    ) -> Tensor:
        h = model.upto(x, self.cut)
        loss = self.loss(model, h, y, draws)
        own = F.cross_entropy(self.head(h.detach()) + self.log_prior, y)
        penalty = client_correction.penalty(x, y)
        model.zero_grad(set_to_none=True)
        self.head.zero_grad(set_to_none=True)
        (loss + own if penalty is None else loss + own + penalty).backward()
        self.optimiser.step()
        return loss.detach()

    def loss(self, model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
        """Return the network's loss for activations h (n, ...): here cross-entropy over the K known classes."""
        return F.cross_entropy(model.after(h, self.cut)[:, : len(self.log_prior)] + self.log_prior, y)
