"""Clusters of embeddings: means, counts, dropped clusters, and unusual numbers of samples."""

from __future__ import annotations

import numpy as np
import pytest

from fedwild.discovery.pool import Clusters, Floats, KnownClasses, cluster_embeddings, cluster_means, kmeans


def cloud(sizes: list[int], d: int = 3, seed: int = 0, spread: float = 0.1) -> tuple[Floats, np.ndarray]:
    """Return well separated groups of these sizes in random order, and the group of each row."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = 10.0 * np.eye(max(d, len(sizes)))[: len(sizes), :d] + 100 * np.arange(len(sizes))[:, None]
    return centres[groups] + spread * rng.normal(size=(len(groups), d)), groups


def same_partition(a: np.ndarray, b: np.ndarray) -> bool:
    return len(set(zip(a.tolist(), b.tolist(), strict=True))) == len(set(a.tolist())) == len(set(b.tolist()))


def test_centroids_are_the_means_of_their_rows_and_counts_add_up() -> None:
    x, groups = cloud([5, 9, 14])
    clusters, assigned = cluster_embeddings(x, 3, seed=0)
    assert same_partition(assigned, groups)
    assert sorted(clusters.counts.tolist()) == [5, 9, 14]
    for number in range(3):
        inside = [row for row, cluster in zip(x.tolist(), assigned, strict=True) if cluster == number]
        assert clusters.counts[number] == len(inside)
        assert np.allclose(
            clusters.centroids[number], [sum(column) / len(inside) for column in zip(*inside, strict=True)]
        )
    assert clusters.counts.dtype == assigned.dtype == np.int64


@pytest.mark.parametrize("wanted", [4, 7])
def test_more_clusters_than_groups_count_every_sample(wanted: int) -> None:
    x, _ = cloud([10, 10])
    clusters, assigned = cluster_embeddings(x, wanted, seed=0)
    assert len(clusters) == wanted
    assert clusters.counts.tolist() == np.bincount(assigned).tolist()
    assert clusters.counts.sum() == 20
    assert np.allclose(np.average(clusters.centroids, axis=0, weights=clusters.counts), x.mean(axis=0))


def test_with_fewer_samples_than_clusters_each_distinct_sample_is_a_cluster() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    clusters, assigned = cluster_embeddings(x, 5, seed=0)
    assert sorted(map(tuple, clusters.centroids.tolist())) == [(1.0, 2.0), (3.0, 4.0)]
    assert sorted(clusters.counts.tolist()) == [1, 2]
    assert np.allclose(clusters.centroids[assigned], x)


def test_without_samples_there_are_no_clusters_of_the_right_width() -> None:
    clusters, assigned = cluster_embeddings(np.empty((0, 7)), 4, seed=0)
    assert len(clusters) == 0
    assert clusters.centroids.shape == (0, 7)
    assert assigned.shape == (0,)
    assert clusters.counts.dtype == assigned.dtype == np.int64


@pytest.mark.parametrize(("samples", "wanted"), [(6, 3), (6, 6), (6, 9), (1, 1)])
def test_identical_features_are_one_cluster_without_a_warning(
    samples: int, wanted: int, recwarn: pytest.WarningsRecorder
) -> None:
    clusters, assigned = cluster_embeddings(np.full((samples, 4), 2.5), wanted, seed=0)
    assert clusters.centroids.tolist() == [[2.5] * 4]
    assert clusters.counts.tolist() == [samples]
    assert assigned.tolist() == [0] * samples
    assert not recwarn.list


@pytest.mark.parametrize("smallest", [1, 2, 4, 100])
def test_small_clusters_are_dropped_and_their_rows_marked(smallest: int) -> None:
    sizes = [1, 3, 5, 8]
    x, groups = cloud(sizes, d=4)
    clusters, assigned = cluster_embeddings(x, 4, seed=0, min_count=smallest)
    kept = [group for group, size in enumerate(sizes) if size >= smallest]
    assert sorted(clusters.counts.tolist()) == [sizes[group] for group in kept]
    assert np.array_equal(assigned >= 0, np.isin(groups, kept))
    assert same_partition(assigned[assigned >= 0], groups[assigned >= 0])
    assert np.array_equal(clusters.counts, np.bincount(assigned[assigned >= 0], minlength=len(kept)))
    for number in range(len(kept)):
        assert np.allclose(clusters.centroids[number], x[assigned == number].mean(axis=0))
    assert clusters.centroids.shape == (len(kept), 4)


def test_no_more_clusters_are_made_than_can_be_large_enough() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    clusters, assigned = cluster_embeddings(x, 80, seed=0, min_count=10)
    assert len(clusters) <= 2
    assert (assigned >= 0).sum() >= 10
    assert cluster_embeddings(x, 80, seed=0, min_count=20)[0].counts.tolist() == [20]


def test_the_same_seed_gives_the_same_clusters() -> None:
    x = np.random.default_rng(0).normal(size=(60, 5))
    first, again = (cluster_embeddings(x, 7, seed=3) for _ in range(2))
    assert np.array_equal(first[0].centroids, again[0].centroids)
    assert np.array_equal(first[1], again[1])


@pytest.mark.parametrize("distinct", [1, 2, 3, 5])
@pytest.mark.parametrize("wanted", [2, 4, 30])
def test_labels_have_no_gaps_however_many_rows_are_equal(distinct: int, wanted: int) -> None:
    x = np.random.default_rng(1).normal(size=(distinct, 3))[np.arange(20) % distinct]
    found = kmeans(x, wanted, seed=0)
    assert set(found.tolist()) == set(range(min(distinct, wanted)))
    if distinct <= wanted:
        assert same_partition(found, np.arange(20) % distinct)


def test_empty_k_means_clusters_leave_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gappy:
        labels_ = np.array([4, 1, 4, 9])

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def fit(self, *_: object, **__: object) -> Gappy:
            return self

    monkeypatch.setattr("sklearn.cluster.KMeans", Gappy)
    assert kmeans(np.zeros((4, 1)), 2, seed=0).tolist() == [1, 0, 1, 2]


def test_weights_move_a_cluster_boundary() -> None:
    # Of 0, 4 and 7, the nearest two form a cluster, unless both are so heavy that merging 0 costs less.
    x = np.array([[0.0], [4.0], [7.0]])
    light = kmeans(x, 2, seed=0, weights=np.array([1, 1, 1]))
    heavy = kmeans(x, 2, seed=0, weights=np.array([1, 50, 50]))
    assert light.tolist() in ([0, 1, 1], [1, 0, 0])
    assert heavy.tolist() in ([0, 0, 1], [1, 1, 0])


def test_means_are_weighted_and_ignore_rows_without_a_cluster() -> None:
    x = np.array([[1.0, 0.0], [3.0, 6.0], [100.0, 100.0], [5.0, 5.0]])
    assigned = np.array([0, 0, -1, 1])
    assert cluster_means(x, assigned).tolist() == [[2.0, 3.0], [5.0, 5.0]]
    assert cluster_means(x, assigned, np.array([3, 1, 9, 2])).tolist() == [[1.5, 1.5], [5.0, 5.0]]
    assert cluster_means(x, np.full(4, -1)).shape == (0, 2)


def test_parts_are_joined_in_order() -> None:
    one = Clusters(np.array([[1.0, 2.0]]), np.array([4]))
    two = Clusters(np.array([[3.0, 4.0], [5.0, 6.0]]), np.array([7, 8]))
    joined = Clusters.joined([one, Clusters.joined([], 2), two], 2)
    assert joined.centroids.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert joined.counts.tolist() == [4, 7, 8]
    assert len(joined) == 3
    nothing = Clusters.joined([], 9)
    assert nothing.centroids.shape == (0, 9)
    assert nothing.counts.dtype == np.int64


def test_clusters_are_selected_by_position_or_by_mask() -> None:
    three = Clusters(np.arange(6.0).reshape(3, 2), np.array([4, 5, 6]))
    assert three.at(np.array([2, 0])).counts.tolist() == [6, 4]
    assert three.at(np.array([False, True, False])).centroids.tolist() == [[2.0, 3.0]]


def test_the_majority_is_the_most_frequent_class_of_a_cluster() -> None:
    labels = np.array([[1, 5, 0], [2, 0, 2], [0, 0, 3]])
    known = KnownClasses(np.zeros((3, 2)), Clusters(np.zeros((3, 2)), labels.sum(1)), labels)
    assert known.majority.tolist() == [1, 0, 2]
