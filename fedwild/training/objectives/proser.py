"""PROSER. Zhou, Ye, Zhan: Learning placeholders for open-set recognition. CVPR 2021; as in FedOV's equation 1.

The head has one output more than there are classes: the unknown class K. The weights of the terms are those of the
original and of FedOV's program (1 and 0.01); FedOV's text prints them the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedwild.core.errors import unknown_name
from fedwild.core.settings import Settings
from fedwild.models import Network
from fedwild.training.objectives.balanced import Balanceable
from fedwild.training.objectives.base import OBJECTIVES

FIRST_DENSE = "first-dense"


class Terms(NamedTuple):
    """The parts of the loss, each a mean over its samples."""

    known: Tensor
    """CE(f(x), y) over K + 1 outputs."""
    dummy: Tensor
    """CE(f(x)\\y, K): with its own class masked, a sample is unknown."""
    mix: Tensor
    """CE(mix, K): a mixture of two classes is unknown; 0 if the batch has only one class."""
    outliers: tuple[Tensor, ...]
    """CE(f(x'), K) for each batch of outliers."""


@OBJECTIVES.add("proser")
class Proser(Balanceable):
    """PROSER: cross-entropy, an unknown output as second best, and mixtures of two classes as unknown."""

    class Params(Settings):
        dummy_weight: float = Field(1.0, ge=0, description="weight of CE(f(x) without y, unknown)")
        mix_weight: float = Field(0.01, ge=0, description="weight of CE(mixed embeddings, unknown)")
        open_weight: float = Field(1.0, ge=0, description="weight of all terms other than cross-entropy with the label")
        mix_after: str = Field(
            FIRST_DENSE,
            description="stage of the network after which samples are mixed; first-dense: its first dense layer",
        )
        balanced: bool = Field(False, description="add the client's log label shares, as objective balanced does")

    extra_outputs = 1
    params: Params

    def check(self, model: Network) -> None:
        if self.params.mix_after not in (FIRST_DENSE, *model.cuts):
            raise unknown_name("objective.mix_after", self.params.mix_after, (FIRST_DENSE, *model.cuts))

    @property
    def open_weight(self) -> float:
        return self.params.open_weight

    def loss(self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        return self.total(self.terms(model, x, y, self.outliers(model, x, generator), generator))

    def closed_and_open(
        self, model: Network, x: Tensor, y: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        terms = self.terms(model, x, y, self.outliers(model, x, generator), generator)
        return terms.known, self.params.dummy_weight * terms.dummy + self.params.mix_weight * terms.mix + sum(
            terms.outliers
        )

    def outliers(self, model: Network, x: Tensor, generator: torch.Generator) -> list[Tensor]:
        """Return batches made from x that count as unknown: none here."""
        return []

    def total(self, terms: Terms) -> Tensor:
        """Return known + w * (a * dummy + b * mix + outliers), where w is the open weight."""
        w, a, b = self.params.open_weight, self.params.dummy_weight, self.params.mix_weight
        return terms.known + w * a * terms.dummy + w * b * terms.mix + w * sum(terms.outliers)

    def terms(
        self, model: Network, x: Tensor, y: Tensor, outliers: Sequence[Tensor], generator: torch.Generator
    ) -> Terms:
        """Return all terms from one forward pass.

        Real samples, outliers and mixtures form one batch, which is cheapest, and batch-norm sees them together.
        """
        n = len(x)
        cut = self.params.mix_after if self.params.mix_after != FIRST_DENSE else model.first_dense()
        everyone = torch.cat([x, *outliers])
        hidden = model.embed(everyone) if cut is None else model.upto(everyone, cut)
        mixed, differ = mixtures(hidden[:n], y, generator)
        hidden = torch.cat([hidden, mixed])
        logits = model.head(hidden) if cut is None else model.after(hidden, cut)
        unknown = torch.full_like(y, logits.shape[1] - 1)
        own, *rest = logits.split([n, *(len(batch) for batch in outliers), n])
        mix_losses = F.cross_entropy(rest[-1], unknown, reduction="none")
        return Terms(
            known=self.cross_entropy(own, y),
            dummy=F.cross_entropy(mask_class(own, y), unknown),
            mix=(mix_losses * differ).sum() / differ.sum().clamp_min(1),
            outliers=tuple(F.cross_entropy(out, unknown[: len(out)]) for out in rest[:-1]),
        )


def mixtures(hidden: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return lam * h_i + (1 - lam) * h_j with one lam ~ Beta(1, 1), and whether i and j differ in class (n,)."""
    lam = float(torch.rand((), generator=generator))
    partner = torch.randperm(len(y), generator=generator).to(y.device)
    return lam * hidden + (1 - lam) * hidden[partner], y != y[partner]


def mask_class(logits: Tensor, y: Tensor) -> Tensor:
    """Return f(x)\\y: logits (n, K + 1) with a very negative entry for the true class."""
    return logits.scatter(1, y.unsqueeze(1), torch.finfo(logits.dtype).min / 2)
