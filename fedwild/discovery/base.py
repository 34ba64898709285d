"""What an estimator of the number of novel classes is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from scipy.spatial.distance import cdist

from fedwild.discovery.pool import Clusters, Floats, Ints, KnownClasses, kmeans, means_of
from fedwild.hyper import Hyper
from fedwild.registry import Registry
from fedwild.rng import Rng

MOST_CLUSTERS = 2000
"""Estimates compare clusters two by two: of more than so many a random part is looked at."""


@dataclass(frozen=True)
class Estimate:
    """How many novel classes there are, how sure that is, and where they lie."""

    number: int
    low: int
    high: int
    """The number is likely from low to high."""
    prototypes: Floats
    """(number, d)."""
    members: Ints
    """The novel class of each cluster (m,), from 0; -1 for a cluster that belongs to none."""
    curve: list[tuple[float, float]] = field(default_factory=list)
    """What the estimator looked at: the number by radius, or a score by number."""

    def to_json(self) -> dict[str, Any]:
        """Number, limits and curve."""
        return {"number": self.number, "low": self.low, "high": self.high, "curve": [list(p) for p in self.curve]}


class Estimator(ABC):
    """Counts novel classes from the clients' clusters. It never sees a label of an unlabelled sample."""

    name: ClassVar[str]
    Params: ClassVar[type[Hyper]] = Hyper

    def __init__(self, params: Any) -> None:
        self.params = params

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0]

    def estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        """The estimate for the clusters of all clients; no clusters, no classes."""
        if not len(pool):
            return Estimate(0, 0, 0, pool.centroids, pool.counts)
        if len(known.clusters) > MOST_CLUSTERS:
            some = rng.numpy("known clusters").permutation(len(known.clusters))[:MOST_CLUSTERS]
            known = KnownClasses(known.rows, known.clusters.at(some), known.labels[some])
        if len(pool) <= MOST_CLUSTERS:
            return self._estimate(pool, known, rng)
        some = rng.numpy("clusters").permutation(len(pool))[:MOST_CLUSTERS]
        estimate = self._estimate(pool.at(some), known, rng)
        return replace(estimate, members=nearest_of(pool.centroids, estimate.prototypes))

    @abstractmethod
    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        """The same for at least one cluster."""


def nearest_of(x: Floats, prototypes: Floats) -> Ints:
    """The number (n,) of the prototype nearest to each row of x (n, d)."""
    return cdist(x, prototypes).argmin(axis=1).astype(np.int64)


ESTIMATORS: Registry[Estimator] = Registry("estimator", lambda: Estimator)


def with_prototypes(
    pool: Clusters,
    number: int,
    limits: tuple[int, int],
    curve: list[tuple[float, float]],
    seed: int,
    weighted: bool = True,
    least: float = 0.0,
) -> Estimate:
    """The estimate whose prototypes are the means of k-means clusters of the pool.

    What k-means sets apart with less than a share `least` of the samples belongs to no class, and it is asked again.
    """
    weights = pool.counts if weighted else np.ones_like(pool.counts)
    members = np.full(len(pool), -1, dtype=np.int64)
    inside = np.arange(len(pool))
    while True:
        found = kmeans(pool.centroids[inside], number, seed, weights[inside])
        small = np.bincount(found, weights=weights[inside]) < least * weights.sum()
        if not small.any() or small.all():
            break
        inside = inside[~small[found]]
    members[inside] = found
    prototypes = means_of(pool.centroids, members, weights)
    number = len(prototypes)
    return Estimate(number, min(limits[0], number), max(limits[1], number), prototypes, members, curve)
