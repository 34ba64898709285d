"""What a client minimises in novel-class learning."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.data.samples import Samples
from fedwild.methods.gal.losses import feature_distance, pairwise_bce, replay, semantic_weighted
from fedwild.methods.gal.records import Discovery
from fedwild.models import Network
from fedwild.training.objectives import Objective

if TYPE_CHECKING:
    from fedwild.methods.gal.method import GAL

DISTILLATION, REPLAY = 10.0, 1.0
"""The weights of iNCD's two terms against forgetting."""


class NovelObjective(Objective):
    """The loss of novel-class learning. Samples with the label -1 are novel; the others have labels."""

    params: GAL.Params

    def __init__(self, params: GAL.Params, discovery: Discovery, objective: Objective, before: Network) -> None:
        """`objective` is minimised with loss=labels; `before` is the network before the stage."""
        super().__init__(params)
        self.discovery, self.objective, self.before = discovery, objective, before

    def on(self, samples: Samples, model: Network) -> Objective:
        if self.params.loss != "labels":
            return self
        fitted = copy.copy(self)
        fitted.objective = self.objective.on(samples, model)
        return fitted

    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        if self.params.loss == "labels":
            loss = self.objective.loss(model, x, y, generator)
        else:
            loss = self.mixed_loss(model, x, y)
        if self.params.against_forgetting == "distillation":
            with torch.no_grad():
                before = self.before.embed(x)
            loss = loss + DISTILLATION * feature_distance(model.embed(x), before)
            loss = loss + REPLAY * replay(model.head.weight, self.discovery.known, generator)
        return loss

    def mixed_loss(self, model: Network, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of novel samples and the cross-entropy of labelled ones, weighted by their shares."""
        z, novel = model.embed(x), y < 0
        loss = z.sum() * 0.0
        if novel.any():
            loss = loss + novel.float().mean() * self.novel_loss(model, z[novel])
        if not novel.all():
            loss = loss + (~novel).float().mean() * F.cross_entropy(model.head(z[~novel]), y[~novel])
        return loss

    def novel_loss(self, model: Network, z: Tensor) -> Tensor:
        """Return SWL (Eq. 9) to fixed prototypes or to the rows of the head, or the pairwise loss (Eq. 11)."""
        rows = model.head.weight[self.discovery.known :]
        if self.params.loss == "bce":
            return pairwise_bce(z, F.linear(z, rows))
        prototypes = self.discovery.prototypes
        if self.params.prototypes == "learnt":
            prototypes = rows * self.discovery.stretch.to(rows.device)[:, None]
        return semantic_weighted(z, prototypes.to(z.device), self.params.temperature, self.params.normalised)
