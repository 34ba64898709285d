"""Potential prototype merge, GAL's own estimate (section 3.3.2)."""

from __future__ import annotations

import numpy as np
from pydantic import Field
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist

from fedwild.discovery.base import ESTIMATORS, Estimate, Estimator, with_prototypes
from fedwild.discovery.pool import Clusters, Floats, Ints, KnownClasses
from fedwild.hyper import Hyper
from fedwild.rng import Rng


def dense_regions(distances: Floats, points: int, radii: Floats) -> Ints:
    """DBSCAN's number of clusters with min_samples = 2 at each radius, noise not counted.

    With min_samples = 2 every point that has a neighbour is a core point, so the clusters are the components of single
    linkage with two points or more: one tree, made of one condensed distance matrix, serves all radii.
    """
    merges = linkage(distances, "single")
    left, right, heights = merges[:, 0].astype(int), merges[:, 1].astype(int), merges[:, 2]
    # Two lone points make one region more, a point that joins a region none, two regions that meet one fewer.
    change = (left < points).astype(int) + (right < points).astype(int) - 1
    return np.append(0, np.cumsum(change))[np.searchsorted(heights, radii, side="right")].astype(np.int64)


def rising_radii(distances: Floats, steps: int) -> Floats:
    """Eq. 8: from the smallest to the largest distance in equal steps; a radius of 0 is left out."""
    radii = np.linspace(distances.min(), distances.max(), steps + 1)
    return radii[radii > 0]


@ESTIMATORS.add("ppm")
class PotentialPrototypeMerge(Estimator):
    """GAL's potential prototype merge: most dense regions over a rising radius."""

    class Params(Hyper):
        steps: int = Field(50, ge=1, description="steps from the smallest to the largest distance of two clusters")

    params: Params

    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        curve = self.curve(pool)
        number = max((count for _, count in curve), default=0)
        # As in the paper, clusters count alike, however many samples they have.
        limits = self.limits(pool, number)
        return with_prototypes(pool, max(1, int(number)), limits, curve, rng.sklearn("prototypes"), weighted=False)

    def curve(self, pool: Clusters) -> list[tuple[float, float]]:
        """The number of dense regions by radius."""
        if len(pool) < 2:
            return []
        distances = pdist(pool.centroids)
        radii = rising_radii(distances, self.params.steps)
        counts = dense_regions(distances, len(pool), radii)
        return list(zip(radii.tolist(), counts.astype(float).tolist(), strict=True))

    def limits(self, pool: Clusters, number: float) -> tuple[int, int]:
        """From the least to the most that any tenth of the clusters, left out, changes the number to."""
        numbers = [number]
        for part in range(10):
            rest = pool.at(np.arange(len(pool)) % 10 != part)
            numbers.append(max((count for _, count in self.curve(rest)), default=1))
        return max(1, int(min(numbers))), int(max(numbers))
