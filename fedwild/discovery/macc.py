"""Estimators that choose the number of clusters with the best accuracy on labelled samples: MACC and MACC-PIM.

MACC: Vaze, Han, Vedaldi, Zisserman: Generalized category discovery. CVPR 2022. All samples are clustered, and the
number of clusters is the one with the highest accuracy on the labelled samples. MACC-PIM, called EMaCS in GAL's paper:
Chiaroni et al.: Parametric information maximization for generalized category discovery. ICCV 2023; the same search with
another clustering. The server has no labelled samples: as in GAL's paper (Eq. 12), known rows with added noise replace
them. Many numbers are often equally accurate; then the one whose clusters are separated best is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional as F

from fedwild.contract import Rng, Settings
from fedwild.discovery.base import ESTIMATORS, Estimate, Estimator, find_prototypes
from fedwild.discovery.pool import Clusters, Floats, Ints, KnownClasses, cluster_means, kmeans, row_noise
from fedwild.openset.metrics import hungarian_accuracy

TOLERANCE = 0.01
"""Numbers whose accuracy is within this of the best one lie inside the limits of the estimate."""
FIRST_NUMBERS = 12
"""So many numbers are tried before those around the best one."""


class MixedSamples(NamedTuple):
    """Unit vectors (n, d): first the pseudo-labelled samples, then the clusters of unlabelled samples."""

    x: Floats
    labels: Ints
    """Labels of the pseudo-labelled samples alone."""


class Quality(NamedTuple):
    """How good a clustering is. The second value decides between equal first ones."""

    accuracy: float
    """On the pseudo-labelled samples."""
    separation: float
    """The mean silhouette of all samples."""


@ESTIMATORS.add("macc")
class MaxAccuracy(Estimator):
    """MACC: the number of k-means clusters with the highest accuracy on pseudo-labelled known samples."""

    class Params(Settings):
        per_class: int | None = Field(
            None,
            ge=1,
            description="pseudo-labelled samples around the row of each known class (default: one per client)",
        )
        largest: int = Field(1000, ge=1, description="largest number of novel classes to try")

    params: Params
    curve_axes = ("number of classes", "accuracy on known samples")

    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        mixed = self.mix(pool, known, rng)

        def quality(novel: int) -> Quality:
            found = self.cluster(mixed, len(known.rows) + novel, rng)
            accuracy = hungarian_accuracy(found[: len(mixed.labels)], mixed.labels)
            return Quality(accuracy, separation(mixed.x, found))

        tried = search(quality, min(self.params.largest, len(pool)))
        number = max(tried, key=lambda n: (tried[n], -n))
        good = [n for n, found in tried.items() if found.accuracy >= tried[number].accuracy - TOLERANCE]
        curve = [(float(n), found.accuracy) for n, found in tried.items()]
        return find_prototypes(pool, number, (good[0], good[-1]), curve, rng.sklearn("prototypes"))

    def mix(self, pool: Clusters, known: KnownClasses, rng: Rng) -> MixedSamples:
        """Return samples drawn around the known rows of the head (Eq. 12), and the centroids of the pool."""
        rows, each = known.rows, self.params.per_class or max(1, pool.clients)
        noise = row_noise(pool) * rng.numpy("pseudo-labelled").normal(size=(len(rows) * each, rows.shape[1]))
        x = np.concatenate([np.repeat(rows, each, axis=0) + noise, pool.centroids])
        x = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
        return MixedSamples(x, np.repeat(np.arange(len(rows)), each))

    def cluster(self, mixed: MixedSamples, number: int, rng: Rng) -> Ints:
        """Return the cluster of each sample (n,)."""
        return kmeans(mixed.x, number, rng.sklearn(f"k-means {number}"), tries=3)


def search(quality: Callable[[int], Quality], largest: int) -> dict[int, Quality]:
    """Return the quality of the numbers that were tried, from 1 to at most `largest`, in order.

    Numbers at equal ratios come first, then the middles between the best number and its neighbours, until those are
    tried, too. Brent's method, which the authors use, gets lost where many numbers are equally accurate.
    """
    first = np.rint(np.geomspace(1, largest, FIRST_NUMBERS)).astype(int).tolist()
    tried = {number: quality(number) for number in dict.fromkeys(first)}
    while True:
        numbers = sorted(tried)
        best = numbers.index(max(numbers, key=lambda n: (tried[n], -n)))
        around = numbers[max(0, best - 1) : best + 2]
        middles = [(low + high) // 2 for low, high in pairwise(around) if high - low > 1]
        if not middles:
            return {number: tried[number] for number in numbers}
        tried |= {number: quality(number) for number in middles}


def separation(x: Floats, found: Ints) -> float:
    """Return the mean silhouette of clusters of x (n, d); -1 if there is one cluster, or one for every sample."""
    # Imported here because scikit-learn takes a second to import and most methods do not need it.
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(x, found)) if 1 < len(np.unique(found)) < len(x) else -1.0


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
