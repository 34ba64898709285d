"""What a client minimises in novel-class learning."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from fedwild.data.samples import Samples
from fedwild.methods.gal.stage import Discovery
from fedwild.models import Network
from fedwild.training import Objective

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
            loss = loss + self.old_knowledge(model, x, generator)
        return loss

    def old_knowledge(self, model: Network, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the distillation of the logits of the network before the stage, and the replay of known classes."""
        found = self.discovery
        with torch.no_grad():
            before = self.before(x)
        distilled = logit_distance(model(x)[:, : found.known], before)
        replayed = replay(model.head.weight, found.known, int(found.clients), float(found.noise), generator)
        return DISTILLATION * distilled + REPLAY * replayed

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


EPSILON = 1e-7
TOP_FEATURES = 5
"""Two samples count as one class if their largest features are the same; so many features are compared (AutoNovel)."""


def semantic_weighted(z: Tensor, prototypes: Tensor, temperature: float, normalised: bool = True) -> Tensor:
    """Return SWL, Eq. 9: the mean distance of samples to all prototypes, weighted by their similarity.

    z (n, d), prototypes (C, d). With `normalised`, similarities are cosines. At the paper's temperature of 0.07, a
    softmax of dot products of raw features is a plain maximum.
    """
    similarity = F.normalize(z) @ F.normalize(prototypes).T if normalised else z @ prototypes.T
    return ((similarity / temperature).softmax(dim=1) * torch.cdist(z, prototypes)).sum(dim=1).mean()


def pairwise_bce(z: Tensor, logits: Tensor, top: int = TOP_FEATURES) -> Tensor:
    """Return Eq. 11 (AutoNovel): samples with the same set of largest features should get the same class.

    z (n, d), logits of the novel classes (n, C). The mean is over all n^2 pairs.
    """
    largest = z.detach().topk(min(top, z.shape[1]), dim=1).indices.sort(dim=1).values
    same = (largest[:, None] == largest).all(dim=2).to(z.dtype)
    p = logits.softmax(dim=1)
    agree = p @ p.T
    return -(same * (agree + EPSILON).log() + (1 - same) * (1 - agree + EPSILON).log()).mean()


def logit_distance(logits: Tensor, before: Tensor) -> Tensor:
    """Return the distance of two matrices of known logits (n, C), each scaled to norm 1 as a whole.

    iNCD compares features in this way; GAL's ablation distils logits (A.3) and does not state how.
    """
    return (logits / logits.norm().clamp_min(EPSILON) - before / before.norm().clamp_min(EPSILON)).norm()


def replay(head: Tensor, known: int, per_class: int, noise: float, generator: torch.Generator) -> Tensor:
    """Return the cross-entropy of features drawn around the first `known` rows of the head (C, d), Eq. 12.

    `noise` is the standard deviation of the features of a class.
    """
    rows = head[:known].detach()
    drawn = torch.randn(known * per_class, rows.shape[1], generator=generator).to(rows)
    features = rows.repeat_interleave(per_class, dim=0) + noise * drawn
    truth = torch.arange(known, device=rows.device).repeat_interleave(per_class)
    return F.cross_entropy(F.linear(features, head), truth)
