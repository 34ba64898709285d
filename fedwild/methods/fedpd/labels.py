"""Whether clients have similar label distributions, given that small samples of one distribution differ as well."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# The largest distance of similar clients once sampling noise is removed; it is about 0.45 for Dirichlet(0.5).
MAX_LABEL_DISTANCE = 0.25


class LabelDistances(NamedTuple):
    """How far the clients' label shares are from those of all clients, 0 to 1."""

    found: float
    by_chance: float
    """The expected distance if the same labels were assigned to the clients at random."""

    @property
    def are_similar(self) -> bool:
        """Whether the distance beyond chance is small: noise and real differences add up like independent errors."""
        return self.found <= math.hypot(self.by_chance, MAX_LABEL_DISTANCE)


def compare_labels(counts: Tensor) -> LabelDistances:
    """Return the distances of label counts (clients, K), of which each client has at least one."""
    counts = counts.double()
    return LabelDistances(label_distance(counts), chance_distance(counts.sum(1), counts.sum(0)))


def label_distance(counts: Tensor) -> float:
    """Return the mean total variation distance of label counts (clients, K) to those of all clients.

    The mean is weighted by samples.
    """
    shares = counts / counts.sum(1, keepdim=True)
    everyone = counts.sum(0) / counts.sum()
    distances = (shares - everyone).abs().sum(1) / 2
    return float((distances * counts.sum(1)).sum() / counts.sum())


def chance_distance(sizes: Tensor, totals: Tensor) -> float:
    """Return the exact mean of `label_distance` over all assignments of labels to clients.

    `sizes` (clients,) are the clients' numbers of samples, `totals` (K,) the samples of each class. The count X of a
    class at a client is hypergeometric with mean n R / N. With m = floor(n R / N), its mean absolute deviation is
    2 (R - m) (n - m) P(X = m) / N, the sum of which telescopes (Diaconis, Zabell 1991).
    """
    everyone = totals.sum()
    n, r = sizes[:, None], totals[None]
    m = (n * r / everyone).floor()
    log_p = _log_binomial(r, m) + _log_binomial(everyone - r, n - m) - _log_binomial(everyone, n)
    deviations = 2 * (r - m) * (n - m) * log_p.exp() / everyone
    return float(deviations.sum() / (2 * everyone))


def _log_binomial(n: Tensor, k: Tensor) -> Tensor:
    return torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
