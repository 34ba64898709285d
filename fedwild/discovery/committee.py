"""The number of novel classes, from how far apart clusters of known classes lie: fedwild's own estimator.

The k-means of each client cuts a class into several clusters. They must be merged before classes can be counted, and
the question is how far apart two clusters of one class may lie. The known classes answer it: their clusters are made in
the same way, and their classes are known. Each vote combines a view of the embeddings, a linkage and a way to choose
the radius that suits the known classes. The estimate is the median of the votes; their spread gives its limits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from pydantic import Field
from scipy.cluster.hierarchy import linkage

from fedwild.contract import Rng, Settings
from fedwild.discovery.base import ESTIMATORS, Estimate, Estimator, find_prototypes
from fedwild.discovery.pool import Clusters, Floats, Ints, KnownClasses, cluster_means

LINKAGES = ("average", "complete", "ward")


@dataclass(frozen=True)
class Metric:
    """A metric in which directions with a large spread within known classes have less weight."""

    centre: Floats
    """(d,)."""
    whitening: Floats
    """(d, d)."""

    @classmethod
    def of(cls, known: KnownClasses) -> Metric:
        """Return the metric of the scatter of known clusters around their class mean, shrunk by its mean variance."""
        x, weights = known.clusters.centroids, known.clusters.counts
        classes = np.unique(known.majority, return_inverse=True)[1].reshape(-1)
        rest = x - cluster_means(x, classes, weights)[classes]
        values, vectors = np.linalg.eigh((rest * weights[:, None]).T @ rest / weights.sum())
        values = np.maximum(values, 0)
        level = values.mean() or 1.0
        return cls(np.average(x, axis=0, weights=weights), vectors / np.sqrt(values + level))

    def views(self, x: Floats) -> Iterator[Floats]:
        """Yield embeddings (n, d) unchanged, whitened, and as unit vectors from the centre of the known classes."""
        yield x
        yield x @ self.whitening
        directions = (x - self.centre) @ self.whitening
        yield directions / np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-12)


@ESTIMATORS.add("committee")
class Committee(Estimator):
    """Merges clusters as far apart as clusters of one known class lie; the median of 18 ways to measure that."""

    class Params(Settings):
        smallest: float = Field(
            0.02, ge=0, lt=1, description="smallest share of samples that is a class; at most 0.5 / (known classes)"
        )

    params: Params
    curve_axes = ("number of classes", "votes")

    def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
        votes = self.votes(pool, known)
        number = max(1, int(np.median(votes)))
        low, high = np.quantile(votes, [0.1, 0.9], method="nearest").astype(int).tolist()
        curve = [(float(n), float(count)) for n, count in zip(*np.unique(votes, return_counts=True), strict=True)]
        limits, share = (max(1, low), high), self.min_share(known)
        return find_prototypes(pool, number, limits, curve, rng.sklearn("prototypes"), min_share=share)

    def min_share(self, known: KnownClasses) -> float:
        """Return the smallest share of the samples that counts as a class."""
        return min(self.params.smallest, 0.5 / max(1, known.labels.shape[1]))

    def votes(self, pool: Clusters, known: KnownClasses) -> Ints:
        """Return the number of classes of each vote. Without known clusters to compare with, it is a single 1."""
        if len(pool) < 2 or len(known.clusters) < 2:
            return np.ones(1, dtype=np.int64)
        metric, votes = Metric.of(known), []
        share = self.min_share(known)
        for x, x_known in zip(metric.views(pool.centroids), metric.views(known.clusters.centroids), strict=True):
            for method in LINKAGES:
                tree = follow_merges(x, method, pool.counts, share)
                known_tree = follow_merges(x_known, method, known.clusters.counts, share, known.majority)
                votes += [tree.groups_at(radius) for radius in best_radii(known_tree, known)]
        return np.array(votes, dtype=np.int64)


class MergeTree(NamedTuple):
    """The groups after each merge of a tree, from no merge (first) to a single group (last). All arrays are (m,)."""

    until: Floats
    """Height of the next merge, where these groups end; infinite for the last entry."""
    radii: Floats
    """A radius at which there are these groups: halfway to the next merge."""
    groups: Ints
    """Number of groups with at least `min_share` of the samples."""
    agreement: Floats
    """Adjusted Rand index of groups and classes, with clusters as items."""

    def groups_at(self, radius: float) -> int:
        """Return the number of groups at a radius."""
        return int(self.groups[int(np.searchsorted(self.until, radius, side="right"))])


def follow_merges(x: Floats, method: str, counts: Ints, min_share: float, classes: Ints | None = None) -> MergeTree:
    """Return the groups after each merge of a linkage of x (m, d), with `counts` (m,) samples and `classes` (m,)."""
    tree, m = linkage(x, method), len(x)
    heights = np.append(tree[:, 2], np.inf)
    sizes = np.concatenate([counts, np.zeros(m - 1, dtype=np.int64)])
    pieces = np.zeros((2 * m - 1, 1 if classes is None else int(classes.max()) + 1))
    pieces[np.arange(m), 0 if classes is None else classes] = 1
    enough = min_share * counts.sum()
    groups, together, agreeing = [int((counts >= enough).sum())], [0.0], [0.0]
    for node, (a, b) in enumerate(tree[:, :2].astype(int), start=m):
        sizes[node], pieces[node] = sizes[a] + sizes[b], pieces[a] + pieces[b]
        groups.append(groups[-1] + int(sizes[node] >= enough) - int(sizes[a] >= enough) - int(sizes[b] >= enough))
        together.append(together[-1] + pieces[a].sum() * pieces[b].sum())
        agreeing.append(agreeing[-1] + pieces[a] @ pieces[b])
    # Merges of equal height happen together, so that only the groups after the last of them count.
    begin = np.append(0.0, heights[:-1])
    last = (begin < heights) | (np.arange(m) == m - 1)
    between = np.where(np.isfinite(heights), (begin + heights) / 2, begin * 1.01)
    agreement = adjusted_rand_index(np.array(agreeing), np.array(together), pieces[-1])
    return MergeTree(heights[last], between[last], np.array(groups)[last], agreement[last])


def adjusted_rand_index(agreeing: Floats, together: Floats, sizes: Floats) -> Floats:
    """Return the adjusted Rand index (m,) from pair counts.

    `agreeing` (m,) counts pairs with the same group and class, `together` (m,) pairs with the same group, `sizes` (C,)
    items of each class.
    """
    of_class, all_pairs = (sizes * (sizes - 1) / 2).sum(), sizes.sum() * (sizes.sum() - 1) / 2
    chance = together * of_class / all_pairs
    spread = (together + of_class) / 2 - chance
    # The spread is 0 only if both are a single group or both are single items: then they are equal.
    return np.where(spread > 0, (agreeing - chance) / np.where(spread > 0, spread, 1.0), 1.0)


def best_radii(tree: MergeTree, known: KnownClasses) -> list[float]:
    """Return two radii that suit the known classes: one by the number of groups, one by the adjusted Rand index.

    Among equally good radii, the middle one is taken.
    """
    number = int((known.labels.sum(axis=0) > 0).sum())
    by_count = -np.abs(tree.groups - number).astype(np.float64)
    return [float(tree.radii[middle_argmax(fits)]) for fits in (by_count, tree.agreement)]


def middle_argmax(values: Floats) -> int:
    """Return the position of the largest value, or the middle position if several are largest."""
    best = np.flatnonzero(values >= values.max() - 1e-9)
    return int(best[len(best) // 2])
