"""The number of novel classes by how known classes fall apart: our own estimate.

Each client's k-means cuts a class into pieces, so clusters must be merged before classes can be counted, and the
question is how far apart two pieces of one class may lie. The known classes answer it: their clusters are made in the
same way, and which of them belong together is known. A voter is a view of the embeddings, a linkage and a way to read
the radius off the known classes; the median of all voters is the number, their spread its uncertainty.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pydantic import Field
from scipy.cluster.hierarchy import linkage

from fedwild.discovery.base import ESTIMATORS, Estimate, Estimator, with_prototypes
from fedwild.discovery.pool import Clusters, Floats, Ints, KnownClasses, means_of
from fedwild.hyper import Hyper
from fedwild.rng import Rng

LINKAGES = ("average", "complete", "ward")


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
        classes = np.unique(known.majority, return_inverse=True)[1].reshape(-1)
        rest = x - means_of(x, classes, weights)[classes]
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
        limits, least = (max(1, low), high), self.least(known)
        return with_prototypes(pool, number, limits, curve, rng.sklearn("prototypes"), least=least)

    def least(self, known: KnownClasses) -> float:
        """The share of the samples that a class must have."""
        return min(self.params.smallest, 0.5 / max(1, known.labels.shape[1]))

    def votes(self, pool: Clusters, known: KnownClasses) -> Ints:
        """Every voter's number. Without known clusters there is nothing to go by: one class."""
        if len(pool) < 2 or len(known.clusters) < 2:
            return np.ones(1, dtype=np.int64)
        metric, votes = Metric.of(known), []
        least = self.least(known)
        for ours, theirs in zip(metric.views(pool.centroids), metric.views(known.clusters.centroids), strict=True):
            for method in LINKAGES:
                tree = merging(ours, method, pool.counts, least)
                known_tree = merging(theirs, method, known.clusters.counts, least, known.majority)
                votes += [tree.groups_at(radius) for radius in radii(known_tree, known)]
        return np.array(votes, dtype=np.int64)


class Merging(NamedTuple):
    """What there is after each merge of a tree, from no merge (first) to a single group (last); all (m,)."""

    until: Floats
    """The height of the next merge, up to which this holds; infinite for the last."""
    radii: Floats
    """A radius at which this holds: half way to the next merge."""
    groups: Ints
    """Groups that have at least a share `least` of the samples."""
    agreement: Floats
    """The adjusted Rand index of groups and classes, cluster by cluster."""

    def groups_at(self, radius: float) -> int:
        """The number of groups whose clusters lie no further apart than a radius."""
        return int(self.groups[int(np.searchsorted(self.until, radius, side="right"))])


def merging(x: Floats, method: str, counts: Ints, least: float, classes: Ints | None = None) -> Merging:
    """Follow the merges of a linkage of x (m, d), each group's samples and pairs of one class counted on the way."""
    tree, m = linkage(x, method), len(x)
    heights = np.append(tree[:, 2], np.inf)
    sizes = np.concatenate([counts, np.zeros(m - 1, dtype=np.int64)])
    pieces = np.zeros((2 * m - 1, 1 if classes is None else int(classes.max()) + 1))
    pieces[np.arange(m), 0 if classes is None else classes] = 1
    enough = least * counts.sum()
    groups, together, agreeing = [int((counts >= enough).sum())], [0.0], [0.0]
    for node, (a, b) in enumerate(tree[:, :2].astype(int), start=m):
        sizes[node], pieces[node] = sizes[a] + sizes[b], pieces[a] + pieces[b]
        groups.append(groups[-1] + int(sizes[node] >= enough) - int(sizes[a] >= enough) - int(sizes[b] >= enough))
        together.append(together[-1] + pieces[a].sum() * pieces[b].sum())
        agreeing.append(agreeing[-1] + pieces[a] @ pieces[b])
    # Merges of equal height happen at once: only what there is after the last of them counts.
    begin = np.append(0.0, heights[:-1])
    last = (begin < heights) | (np.arange(m) == m - 1)
    between = np.where(np.isfinite(heights), (begin + heights) / 2, begin * 1.01)
    agreement = adjusted(np.array(agreeing), np.array(together), pieces[-1])
    return Merging(heights[last], between[last], np.array(groups)[last], agreement[last])


def adjusted(agreeing: Floats, together: Floats, sizes: Floats) -> Floats:
    """The adjusted Rand index from the pairs that share group and class, the pairs that share a group, and classes."""
    of_class, all_pairs = (sizes * (sizes - 1) / 2).sum(), sizes.sum() * (sizes.sum() - 1) / 2
    chance = together * of_class / all_pairs
    spread = (together + of_class) / 2 - chance
    # Without spread both are one group, or both are single clusters: they are the same.
    return np.where(spread > 0, (agreeing - chance) / np.where(spread > 0, spread, 1.0), 1.0)


def radii(tree: Merging, known: KnownClasses) -> list[float]:
    """The radii that suit the known classes best.

    Once: as many groups as there are classes. Once: the groups are most like the classes (adjusted Rand index). Of
    equally good radii the middle one is taken.
    """
    number = int((known.labels.sum(axis=0) > 0).sum())
    by_count = -np.abs(tree.groups - number).astype(np.float64)
    return [float(tree.radii[middle_of_best(fits)]) for fits in (by_count, tree.agreement)]


def middle_of_best(fits: Floats) -> int:
    """The position of the largest number; of several, the middle one."""
    best = np.flatnonzero(fits >= fits.max() - 1e-9)
    return int(best[len(best) // 2])
