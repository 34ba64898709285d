"""The number of novel classes by how known classes fall apart: our own estimate.

Each client's k-means cuts a class into pieces, so clusters must be merged before classes can be counted, and the
question is how far apart two pieces of one class may lie. The known classes answer it: their clusters are made in the
same way, and which of them belong together is known. A voter is a view of the embeddings, a linkage and a way to read
the radius off the known classes; the median of all voters is the number, their spread its uncertainty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pydantic import Field
from scipy.cluster.hierarchy import fcluster, linkage

from fedwild.discovery.base import ESTIMATORS, Estimate, Estimator, with_prototypes
from fedwild.discovery.pool import Clusters, Floats, Ints, KnownClasses, means_of
from fedwild.hyper import Hyper
from fedwild.metrics import ari
from fedwild.rng import Rng

LINKAGES = ("average", "complete", "ward")
READINGS = ("count", "agreement")


@dataclass(frozen=True)
class Metric:
    """Embeddings in which directions along which known classes are wide count less."""

    centre: Floats
    """(d,)."""
    whitening: Floats
    """(d, d)."""

    @classmethod
    def of(cls, known: KnownClasses) -> Metric:
        """From the scatter of known clusters about their class's mean, half way to the identity."""
        x, weights = known.clusters.centroids, known.clusters.counts
        own = means_of(x, np.unique(known.majority, return_inverse=True)[1].reshape(-1), weights)
        classes = np.unique(known.majority, return_inverse=True)[1].reshape(-1)
        rest = x - own[classes]
        values, vectors = np.linalg.eigh((rest * weights[:, None]).T @ rest / weights.sum())
        values = np.maximum(values, 0)
        level = values.mean() or 1.0
        return cls(np.average(x, axis=0, weights=weights), vectors / np.sqrt(values + level))

    def views(self, x: Floats) -> Iterator[Floats]:
        """Embeddings (n, d) as they are, whitened, and as directions from the known classes' centre."""
        yield x
        yield x @ self.whitening
        directions = (x - self.centre) @ self.whitening
        yield directions / np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-12)


@ESTIMATORS.add("committee")
class Committee(Estimator):
    """Merges clusters as far as known classes' clusters lie apart; the median of 18 ways to see that."""

    class Params(Hyper):
        smallest: float = Field(
            0.02, ge=0, lt=1, description="groups with a smaller share of the samples are no class (or half of 1 / C)"
        )

    params: Params

    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        votes = self.votes(pool, known)
        number = max(1, int(np.median(votes)))
        low, high = np.quantile(votes, [0.1, 0.9], method="nearest").astype(int).tolist()
        curve = [(float(n), float(count)) for n, count in zip(*np.unique(votes, return_counts=True), strict=True)]
        return with_prototypes(pool, number, (max(1, low), high), curve, rng.sklearn("prototypes"))

    def votes(self, pool: Clusters, known: KnownClasses) -> Ints:
        """Every voter's number. Without known clusters there is nothing to go by: one class."""
        if len(pool) < 2 or len(known.clusters) < 2:
            return np.ones(1, dtype=np.int64)
        metric, votes = Metric.of(known), []
        least = min(self.params.smallest, 0.5 / known.labels.shape[1])
        for ours, theirs in zip(metric.views(pool.centroids), metric.views(known.clusters.centroids), strict=True):
            for method in LINKAGES:
                tree = linkage(ours, method)
                for radius in radii(linkage(theirs, method), known, least):
                    votes.append(groups(tree, radius, pool.counts, least))
        return np.array(votes, dtype=np.int64)


def groups(tree: Floats, radius: float, counts: Ints, least: float) -> int:
    """The number of groups at a radius that have at least a share `least` of the samples."""
    sizes = np.bincount(fcluster(tree, radius, "distance"), weights=counts)
    return int((sizes[1:] >= least * counts.sum()).sum())


def radii(tree: Floats, known: KnownClasses, least: float) -> list[float]:
    """The radii that suit the known classes best, one per reading.

    "count": as many groups as there are classes. "agreement": the groups are most like the classes (adjusted Rand
    index). Of equally good radii the middle one is taken.
    """
    heights = np.unique(tree[:, 2])
    between = np.append((heights[1:] + heights[:-1]) / 2, heights[-1] * 1.01)
    counts, classes = known.clusters.counts, known.majority
    number = int((known.labels.sum(axis=0) > 0).sum())
    by_count = [-abs(groups(tree, radius, counts, least) - number) for radius in between]
    by_agreement = [ari(fcluster(tree, radius, "distance"), classes) for radius in between]
    return [float(between[middle_of_best(np.array(fits))]) for fits in (by_count, by_agreement)]


def middle_of_best(fits: Floats) -> int:
    """The position of the largest number; of several, the middle one."""
    best = np.flatnonzero(fits >= fits.max() - 1e-9)
    return int(best[len(best) // 2])
