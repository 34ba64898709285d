"""What an estimator of the number of novel classes is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedwild.discovery.pool import Clusters, Floats, Ints, KnownClasses, kmeans, means_of
from fedwild.hyper import Hyper
from fedwild.registry import Registry
from fedwild.rng import Rng


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
        return self._estimate(pool, known, rng)

    @abstractmethod
    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        """The same for at least one cluster."""


ESTIMATORS: Registry[Estimator] = Registry("estimator", lambda: Estimator)


def with_prototypes(
    pool: Clusters,
    number: int,
    limits: tuple[int, int],
    curve: list[tuple[float, float]],
    seed: int,
    weighted: bool = True,
) -> Estimate:
    """The estimate whose prototypes are the means of k-means clusters of the pool."""
    weights = pool.counts if weighted else None
    members = kmeans(pool.centroids, number, seed, weights)
    prototypes = means_of(pool.centroids, members, weights)
    number = len(prototypes)
    return Estimate(number, min(limits[0], number), max(limits[1], number), prototypes, members, curve)
