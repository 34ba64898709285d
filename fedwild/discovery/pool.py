"""Local clusters of embeddings: what clients send up about samples that nobody has labelled (GAL, Eq. 7)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Clusters:
    """Clusters of one client's embeddings, or of many clients' ones."""

    centroids: Floats
    """(m, d)."""
    counts: Ints
    """Samples in each cluster (m,)."""

    def __len__(self) -> int:
        return len(self.counts)

    def at(self, positions: NDArray[np.bool_] | Ints) -> Clusters:
        """The clusters at these positions."""
        return Clusters(self.centroids[positions], self.counts[positions])

    @staticmethod
    def joined(parts: Sequence[Clusters], width: int) -> Clusters:
        """All parts' clusters, in order; `width` is d, for the case that there is none."""
        nothing = Clusters(np.empty((0, width)), np.empty(0, dtype=np.int64))
        return Clusters(
            np.concatenate([part.centroids for part in (nothing, *parts)]),
            np.concatenate([part.counts for part in (nothing, *parts)]),
        )


@dataclass(frozen=True)
class KnownClasses:
    """What the server knows of the labelled classes, in the space of the embeddings."""

    rows: Floats
    """Their rows of the head (C, d)."""
    clusters: Clusters
    """Clusters of the clients' validation samples."""
    labels: Ints
    """How many samples of each class lie in each cluster (m, C)."""

    @property
    def majority(self) -> Ints:
        """The commonest class of each cluster (m,)."""
        return self.labels.argmax(axis=1)


def kmeans(x: Floats, clusters: int, seed: int, weights: Ints | None = None, tries: int = 10) -> Ints:
    """The cluster of each row of x (n, d), numbered from 0 without gaps; equal rows can make them fewer."""
    if clusters >= len(x):
        return np.unique(x, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    # Imported late: scikit-learn takes a second, and most methods do without it.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Fewer distinct points than clusters is no mistake of the caller's.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(clusters, n_init=tries, random_state=seed).fit(x, sample_weight=weights).labels_
    return np.unique(found, return_inverse=True)[1].reshape(-1).astype(np.int64)


def clusters_of(x: Floats, clusters: int, seed: int, least: int = 1) -> tuple[Clusters, Ints]:
    """k-means clusters of embeddings x (n, d), and the cluster of each row, -1 for those not told.

    Clusters of fewer than `least` samples are not told: a centroid of one sample is that sample's embedding. So no more
    clusters are made than could have as many.
    """
    if not len(x):
        return Clusters.joined([], x.shape[1]), np.empty(0, dtype=np.int64)
    members = kmeans(x, min(clusters, max(1, len(x) // least)), seed, tries=3)
    told = np.bincount(members) >= least
    numbers = np.where(told, np.cumsum(told) - 1, -1)
    members = numbers[members]
    return Clusters(means_of(x, members), np.bincount(members[members >= 0], minlength=0).astype(np.int64)), members


def means_of(x: Floats, members: Ints, weights: Ints | None = None) -> Floats:
    """The weighted mean (number, d) of the rows of each cluster 0, 1 ...; rows of cluster -1 are left out."""
    inside = members >= 0
    weight = np.ones(len(x)) if weights is None else weights.astype(np.float64)
    number = int(members.max(initial=-1)) + 1
    sums = np.zeros((number, x.shape[1]))
    np.add.at(sums, members[inside], x[inside] * weight[inside, None])
    return sums / np.bincount(members[inside], weights=weight[inside], minlength=number)[:, None]
