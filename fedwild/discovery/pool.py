"""Clusters of embeddings: what clients send about samples that have no labels (GAL, Eq. 7)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOISE_VARIANCE = 0.01
"""The variance of the noise around known rows, in units of the pool's smallest distance (GAL, Eq. 12)."""


@dataclass(frozen=True)
class Clusters:
    """Clusters of the embeddings of one client or of several clients."""

    centroids: Floats
    """(m, d)."""
    counts: Ints
    """Number of samples in each cluster (m,)."""
    clients: int = 1
    """Number of clients that were asked for them."""

    def __len__(self) -> int:
        return len(self.counts)

    def at(self, positions: NDArray[np.bool_] | Ints) -> Clusters:
        """Return the clusters at these positions."""
        return Clusters(self.centroids[positions], self.counts[positions], self.clients)

    @staticmethod
    def joined(parts: Sequence[Clusters], width: int) -> Clusters:
        """Return the clusters of all parts, in order. `width` is d, needed if there are no parts."""
        nothing = Clusters(np.empty((0, width)), np.empty(0, dtype=np.int64))
        return Clusters(
            np.concatenate([part.centroids for part in (nothing, *parts)]),
            np.concatenate([part.counts for part in (nothing, *parts)]),
            sum(part.clients for part in parts),
        )


@dataclass(frozen=True)
class KnownClasses:
    """What the server knows about the labelled classes in the space of the embeddings."""

    rows: Floats
    """Their rows of the head (C, d)."""
    clusters: Clusters
    """Clusters of the validation samples of all clients."""
    labels: Ints
    """Number of samples of each class in each cluster (m, C)."""

    @property
    def majority(self) -> Ints:
        """The most frequent class of each cluster (m,)."""
        return self.labels.argmax(axis=1)


def kmeans(x: Floats, clusters: int, seed: int, weights: Ints | None = None, tries: int = 10) -> Ints:
    """Return the cluster of each row of x (n, d), numbered from 0 without gaps.

    There are fewer than `clusters` of them if x has fewer distinct rows.
    """
    if clusters >= len(x):
        return np.unique(x, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    # Imported here because scikit-learn takes a second to import and most methods do not need it.
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Fewer distinct rows than clusters are allowed.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = KMeans(clusters, n_init=tries, random_state=seed).fit(x, sample_weight=weights).labels_
    return np.unique(found, return_inverse=True)[1].reshape(-1).astype(np.int64)


def cluster_embeddings(x: Floats, clusters: int, seed: int, min_count: int = 1) -> tuple[Clusters, Ints]:
    """Return the k-means clusters of embeddings x (n, d), and the cluster of each row (n,).

    Clusters with fewer than `min_count` samples are dropped, since the centroid of one sample is the embedding of that
    sample. Their rows get the number -1. k-means makes at most n / `min_count` clusters.
    """
    if not len(x):
        return Clusters(x, np.empty(0, dtype=np.int64)), np.empty(0, dtype=np.int64)
    assigned = kmeans(x, min(clusters, max(1, len(x) // min_count)), seed, tries=3)
    kept = np.bincount(assigned) >= min_count
    assigned = np.where(kept, np.cumsum(kept) - 1, -1)[assigned]
    counts = np.bincount(assigned[assigned >= 0]).astype(np.int64)
    return Clusters(cluster_means(x, assigned), counts), assigned


def cluster_means(x: Floats, assigned: Ints, weights: Ints | None = None) -> Floats:
    """Return the weighted mean (number, d) of the rows of each cluster 0, 1, ...; rows of cluster -1 are ignored."""
    inside = assigned >= 0
    weight = np.ones(len(x)) if weights is None else weights.astype(np.float64)
    number = int(assigned.max(initial=-1)) + 1
    sums = np.zeros((number, x.shape[1]))
    np.add.at(sums, assigned[inside], x[inside] * weight[inside, None])
    return sums / np.bincount(assigned[inside], weights=weight[inside], minlength=number)[:, None]


def row_noise(pool: Clusters) -> float:
    """Return the standard deviation of the noise that turns known rows into samples (GAL, Eq. 12).

    It is 0.1 times the smallest distance between two clusters of the pool, and 0 for fewer than two clusters.
    """
    return float(np.sqrt(NOISE_VARIANCE) * pdist(pool.centroids).min(initial=np.inf)) if len(pool) > 1 else 0.0
