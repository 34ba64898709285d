"""The base class of estimators of the number of novel classes, and what they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from pydantic import Field
from scipy.spatial.distance import cdist

from fedwild.contract import Rng, Settings
from fedwild.core.component import Component
from fedwild.core.registry import Registry
from fedwild.discovery.pool import Clusters, Floats, Ints, KnownClasses, cluster_means, kmeans

MAX_CLUSTERS = 2000
"""Estimators compare clusters pairwise, so that a random subset is used if there are more."""


@dataclass(frozen=True)
class ClassCount:
    """How many novel classes there are, and how certain that is."""

    number: int
    low: int
    high: int
    """The true number probably lies between low and high."""
    curve: list[tuple[float, float]] = field(default_factory=list)
    """What the estimator looked at; `Estimator.curve_axes` names its axes."""

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number, "low": self.low, "high": self.high, "curve": [list(p) for p in self.curve]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ClassCount:
        return cls(values["number"], values["low"], values["high"], [(x, y) for x, y in values["curve"]])


@dataclass(frozen=True, kw_only=True)
class Estimate(ClassCount):
    """The number of novel classes and where they lie."""

    prototypes: Floats
    """(number, d)."""
    assigned: Ints
    """The novel class of each cluster (m,), from 0; -1 for a cluster without a class."""


class Estimator(Component, ABC):
    """Estimates the number of novel classes from clusters of all clients, without using labels."""

    curve_axes: ClassVar[tuple[str, str]] = ("number of classes", "score")
    """What the x and y values of an estimate's curve are."""

    def estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        """Return the estimate for the clusters of all clients. Without clusters, it is 0."""
        if not len(pool):
            return Estimate(0, 0, 0, prototypes=pool.centroids, assigned=pool.counts)
        if len(known.clusters) > MAX_CLUSTERS:
            some = rng.numpy("known clusters").permutation(len(known.clusters))[:MAX_CLUSTERS]
            known = KnownClasses(known.rows, known.clusters.at(some), known.labels[some])
        if len(pool) <= MAX_CLUSTERS:
            return self._estimate(pool, known, rng)
        some = rng.numpy("clusters").permutation(len(pool))[:MAX_CLUSTERS]
        estimate = self._estimate(pool.at(some), known, rng)
        nearest = cdist(pool.centroids, estimate.prototypes).argmin(axis=1).astype(np.int64)
        return replace(estimate, assigned=nearest)

    @abstractmethod
    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        """Return the estimate for at least one and at most MAX_CLUSTERS clusters."""


ESTIMATORS: Registry[Estimator] = Registry("estimator", Estimator)


def find_prototypes(
    pool: Clusters,
    number: int,
    limits: tuple[int, int],
    curve: list[tuple[float, float]],
    seed: int,
    weighted: bool = True,
    min_share: float = 0.0,
) -> Estimate:
    """Return the estimate whose prototypes are the means of `number` k-means clusters of the pool.

    A k-means cluster with less than `min_share` of the samples belongs to no class. It is removed, and k-means runs
    again on the others.
    """
    weights = pool.counts if weighted else np.ones_like(pool.counts)
    assigned = np.full(len(pool), -1, dtype=np.int64)
    inside = np.arange(len(pool))
    while True:
        found = kmeans(pool.centroids[inside], number, seed, weights[inside])
        small = np.bincount(found, weights=weights[inside]) < min_share * weights.sum()
        if not small.any() or small.all():
            break
        inside = inside[~small[found]]
    assigned[inside] = found
    prototypes = cluster_means(pool.centroids, assigned, weights)
    number = len(prototypes)
    low, high = min(limits[0], number), max(limits[1], number)
    return Estimate(number, low, high, curve, prototypes=prototypes, assigned=assigned)


@ESTIMATORS.add("given")
class Given(Estimator):
    """A given number of novel classes in every stage."""

    class Params(Settings):
        classes: int = Field(1, ge=1, description="number of novel classes")

    params: Params

    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        number = self.params.classes
        return find_prototypes(pool, number, (number, number), [], rng.sklearn("prototypes"))
