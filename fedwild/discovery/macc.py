"""Estimators that choose the number of clusters with the best accuracy on labelled samples: MACC and MACC-PIM.

MACC: Vaze, Han, Vedaldi, Zisserman: Generalized category discovery. CVPR 2022. All samples are clustered, and the
number of clusters is the one with the highest accuracy on the labelled samples. MACC-PIM, called EMaCS in GAL's paper:
Chiaroni et al.: Parametric information maximization for generalized category discovery. ICCV 2023; the same search with
another clustering. The server has no labelled samples: as in GAL's paper, known rows with added noise replace them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from pydantic import Field
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import pdist
from torch.nn import functional as F

from fedwild.contract import Rng, Settings
from fedwild.discovery.base import ESTIMATORS, Estimate, Estimator, find_prototypes
from fedwild.discovery.pool import Clusters, Floats, Ints, KnownClasses, cluster_means, kmeans
from fedwild.openset.metrics import hungarian_accuracy

NOISE = 0.01
"""Standard deviation of the noise, relative to the smallest distance between two known rows."""
TOLERANCE = 0.01
"""Numbers whose accuracy is within this of the best one lie inside the limits of the estimate."""


class MixedSamples(NamedTuple):
    """Unit vectors (n, d): first the pseudo-labelled samples, then the clusters of unlabelled samples."""

    x: Floats
    labels: Ints
    """Labels of the pseudo-labelled samples alone."""


@ESTIMATORS.add("macc")
class MaxAccuracy(Estimator):
    """MACC: the number of k-means clusters with the highest accuracy on pseudo-labelled known samples."""

    class Params(Settings):
        per_class: int = Field(20, ge=1, description="pseudo-labelled samples drawn around the row of each known class")
        largest: int = Field(1000, ge=1, description="largest number of novel classes to try")

    params: Params
    curve_axes = ("number of classes", "accuracy on known samples")

    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        mixed, smallest = self.mix(pool, known, rng), len(known.rows)
        largest = smallest + min(self.params.largest, len(pool))
        accuracies: dict[int, float] = {}

        def loss(number: float) -> float:
            clusters = int(number)
            if clusters not in accuracies:
                found = self.cluster(mixed, clusters, rng)
                accuracies[clusters] = hungarian_accuracy(found[: len(mixed.labels)], mixed.labels)
            return -accuracies[clusters]

        for end in (smallest, largest):
            loss(end)
        minimize_scalar(loss, bounds=(smallest, largest), method="bounded", options={"xatol": 0.5})
        best = max(accuracies.values())
        good = sorted(n - smallest for n, accuracy in accuracies.items() if accuracy >= best - TOLERANCE)
        number = min(n - smallest for n, accuracy in accuracies.items() if accuracy == best)
        curve = [(float(n - smallest), accuracy) for n, accuracy in sorted(accuracies.items())]
        limits = (max(1, good[0]), max(1, good[-1]))
        return find_prototypes(pool, max(1, number), limits, curve, rng.sklearn("prototypes"))

    def mix(self, pool: Clusters, known: KnownClasses, rng: Rng) -> MixedSamples:
        """Return samples drawn around the known rows of the head, and the centroids of the pool."""
        rows, each = known.rows, self.params.per_class
        least = pdist(rows).min() if len(rows) > 1 else 1.0
        noise = rng.numpy("pseudo-labelled").normal(size=(len(rows) * each, rows.shape[1]))
        x = np.concatenate([np.repeat(rows, each, axis=0) + NOISE * least * noise, pool.centroids])
        x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        return MixedSamples(x, np.repeat(np.arange(len(rows)), each))

    def cluster(self, mixed: MixedSamples, number: int, rng: Rng) -> Ints:
        """Return the cluster of each sample (n,)."""
        return kmeans(mixed.x, number, rng.sklearn(f"k-means {number}"), tries=3)


@ESTIMATORS.add("macc-pim")
class MaxAccuracyPIM(MaxAccuracy):
    """MACC with parametric information maximisation instead of k-means (EMaCS in GAL's tables)."""

    class Params(MaxAccuracy.Params):
        epochs: int = Field(1000, ge=1, description="full-batch Adam steps per number of clusters")
        temperature: float = Field(25.0, gt=0, description="factor of the cosines before the softmax")
        certainty: float = Field(1.0, ge=0, description="weight of the conditional entropy")

    params: Params

    def cluster(self, mixed: MixedSamples, number: int, rng: Rng) -> Ints:
        """Start with k-means, then minimise the entropy of unlabelled samples and maximise that of the mean answer."""
        start = cluster_means(mixed.x, kmeans(mixed.x, number, rng.sklearn(f"k-means {number}"), tries=3))
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
    """Return the entropy (n,) of each row of probabilities (n, K)."""
    return torch.special.entr(p).sum(1)
