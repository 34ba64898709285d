"""Potential prototype merge, the estimator of GAL's paper (section 3.3.2)."""

from __future__ import annotations

import numpy as np
from pydantic import Field
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist

from fedwild.contract import Rng, Settings
from fedwild.discovery.base import ESTIMATORS, Estimate, Estimator, find_prototypes
from fedwild.discovery.pool import Clusters, Floats, Ints, KnownClasses


def count_dense_regions(distances: Floats, points: int, radii: Floats) -> Ints:
    """Return the number of clusters that DBSCAN finds with min_samples = 2 at each radius, without noise.

    With min_samples = 2, every point with a neighbour is a core point. The clusters are therefore the components of
    single linkage with at least two points, and one tree of the condensed `distances` serves all radii.
    """
    merges = linkage(distances, "single")
    left, right, heights = merges[:, 0].astype(int), merges[:, 1].astype(int), merges[:, 2]
    # Two single points form a new region, a point that joins a region changes nothing, two regions become one.
    change = (left < points).astype(int) + (right < points).astype(int) - 1
    return np.append(0, np.cumsum(change))[np.searchsorted(heights, radii, side="right")].astype(np.int64)


def rising_radii(distances: Floats, steps: int) -> Floats:
    """Return the radii of Eq. 8: from the smallest to the largest distance in equal steps, without a radius of 0."""
    radii = np.linspace(distances.min(), distances.max(), steps + 1)
    return radii[radii > 0]


@ESTIMATORS.add("ppm")
class PotentialPrototypeMerge(Estimator):
    """GAL's potential prototype merge: the largest number of dense regions over a rising radius."""

    class Params(Settings):
        steps: int = Field(50, ge=1, description="steps from the smallest to the largest distance between clusters")

    params: Params
    curve_axes = ("radius", "dense regions")

    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        curve = self.curve(pool)
        number = max((count for _, count in curve), default=0)
        # As in the paper, all clusters have the same weight, whatever their number of samples.
        limits = self.limits(pool, number)
        return find_prototypes(pool, max(1, int(number)), limits, curve, rng.sklearn("prototypes"), weighted=False)

    def curve(self, pool: Clusters) -> list[tuple[float, float]]:
        """Return the number of dense regions by radius."""
        if len(pool) < 2:
            return []
        distances = pdist(pool.centroids)
        radii = rising_radii(distances, self.params.steps)
        counts = count_dense_regions(distances, len(pool), radii)
        return list(zip(radii.tolist(), counts.astype(float).tolist(), strict=True))

    def limits(self, pool: Clusters, number: float) -> tuple[int, int]:
        """Return the smallest and largest number found when each tenth of the clusters is omitted in turn."""
        numbers = [number]
        for part in range(10):
            rest = pool.at(np.arange(len(pool)) % 10 != part)
            numbers.append(max((count for _, count in self.curve(rest)), default=1))
        return max(1, int(min(numbers))), int(max(numbers))
