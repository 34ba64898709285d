"""Estimates that look for the number of clusters which suits labelled samples best: MACC and MACC-PIM.

MACC: Vaze, Han, Vedaldi, Zisserman: Generalized category discovery. CVPR 2022. All samples are clustered; the number of
clusters is the one with the highest accuracy on the labelled ones. MACC-PIM, which GAL's paper calls EMaCS: Chiaroni et
al.: Parametric information maximization for generalized category discovery. ICCV 2023; the same search with another
clustering. The server has no labelled samples: as in GAL's paper, the known rows with a little noise stand for them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from pydantic import Field
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import pdist
from torch.nn import functional as F

from fedwild.discovery.base import ESTIMATORS, Estimate, Estimator, with_prototypes
from fedwild.discovery.pool import Clusters, Floats, Ints, KnownClasses, kmeans, means_of
from fedwild.hyper import Hyper
from fedwild.metrics import hungarian_accuracy
from fedwild.rng import Rng

NOISE = 0.01
CLOSE = 0.01
"""Numbers whose accuracy is no further from the best one belong to the estimate's limits."""


class Mixed(NamedTuple):
    """Labelled samples, then the unlabelled clusters, of length 1 (n, d)."""

    x: Floats
    labels: Ints
    """Of the labelled samples alone."""


@ESTIMATORS.add("macc")
class MaxAccuracy(Estimator):
    """MACC: the number of k-means clusters with the highest accuracy on pseudo-labelled known samples."""

    class Params(Hyper):
        per_class: int = Field(20, ge=1, description="pseudo-labelled samples drawn around each known class's row")
        largest: int = Field(1000, ge=1, description="the largest number of novel classes looked at")

    params: Params

    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        mixed, fewest = self.mixed(pool, known, rng), len(known.rows)
        most = fewest + min(self.params.largest, len(pool))
        accuracies: dict[int, float] = {}

        def loss(number: float) -> float:
            clusters = int(number)
            if clusters not in accuracies:
                found = self.cluster(mixed, clusters, rng)
                accuracies[clusters] = hungarian_accuracy(found[: len(mixed.labels)], mixed.labels)
            return -accuracies[clusters]

        for end in (fewest, most):
            loss(end)
        minimize_scalar(loss, bounds=(fewest, most), method="bounded", options={"xatol": 0.5})
        best = max(accuracies.values())
        good = sorted(n - fewest for n, accuracy in accuracies.items() if accuracy >= best - CLOSE)
        number = min(n - fewest for n, accuracy in accuracies.items() if accuracy == best)
        curve = [(float(n - fewest), accuracy) for n, accuracy in sorted(accuracies.items())]
        limits = (max(1, good[0]), max(1, good[-1]))
        return with_prototypes(pool, max(1, number), limits, curve, rng.sklearn("prototypes"))

    def mixed(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Mixed:
        """Rows of the head with noise of a hundredth of the least distance between two of them, and the pool."""
        rows, each = known.rows, self.params.per_class
        least = pdist(rows).min() if len(rows) > 1 else 1.0
        noise = rng.numpy("pseudo-labelled").normal(size=(len(rows) * each, rows.shape[1]))
        x = np.concatenate([np.repeat(rows, each, axis=0) + NOISE * least * noise, pool.centroids])
        return Mixed(
            x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12), np.repeat(np.arange(len(rows)), each)
        )

    def cluster(self, mixed: Mixed, number: int, rng: Rng) -> Ints:
        """The cluster of each sample (n,)."""
        return kmeans(mixed.x, number, rng.sklearn(f"k-means {number}"), tries=3)


@ESTIMATORS.add("macc-pim")
class MaxAccuracyPIM(MaxAccuracy):
    """MACC with parametric information maximisation in place of k-means (EMaCS in GAL's tables)."""

    class Params(MaxAccuracy.Params):
        epochs: int = Field(1000, ge=1, description="full-batch steps of Adam per number looked at")
        temperature: float = Field(25.0, gt=0, description="multiplies the cosines before the softmax")
        certainty: float = Field(1.0, ge=0, description="weight of the conditional entropy")

    params: Params

    def cluster(self, mixed: Mixed, number: int, rng: Rng) -> Ints:
        """Starts at k-means; the unlabelled become certain, all together evenly spread."""
        start = means_of(mixed.x, kmeans(mixed.x, number, rng.sklearn(f"k-means {number}"), tries=3))
        x = torch.tensor(mixed.x, dtype=torch.float32)
        weight = torch.tensor(start, dtype=torch.float32, requires_grad=True)
        optimiser = torch.optim.Adam([weight], lr=1e-3, weight_decay=1e-2)
        for _ in range(self.params.epochs):
            logits = self.params.temperature * x @ weight.T
            loss = self.params.certainty * entropies(logits[len(mixed.labels) :].softmax(1)).mean()
            loss = loss - entropies(logits.softmax(1).mean(0, keepdim=True))[0]
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():
            return F.linear(x, weight).argmax(1).numpy()


def entropies(p: torch.Tensor) -> torch.Tensor:
    """The entropy (n,) of each row of probabilities (n, K)."""
    return torch.special.entr(p).sum(1)
