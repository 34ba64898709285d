"""Local clusters: means, counts, what is not told, and odd numbers of samples."""

from __future__ import annotations

import numpy as np
import pytest

from fedwild.discovery.pool import Clusters, Floats, KnownClasses, clusters_of, kmeans, means_of


def cloud(sizes: list[int], d: int = 3, seed: int = 0, spread: float = 0.1) -> tuple[Floats, np.ndarray]:
    """Well separated groups of these sizes, in shuffled order, and the group of each row."""
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = 10.0 * np.eye(max(d, len(sizes)))[: len(sizes), :d] + 100 * np.arange(len(sizes))[:, None]
    return centres[groups] + spread * rng.normal(size=(len(groups), d)), groups


def same_partition(a: np.ndarray, b: np.ndarray) -> bool:
    return len(set(zip(a.tolist(), b.tolist(), strict=True))) == len(set(a.tolist())) == len(set(b.tolist()))


def test_centroids_are_the_means_of_their_members_and_counts_add_up() -> None:
    x, groups = cloud([5, 9, 14])
    clusters, members = clusters_of(x, 3, seed=0)
    assert same_partition(members, groups)
    assert sorted(clusters.counts.tolist()) == [5, 9, 14]
    for number in range(3):
        inside = [row for row, member in zip(x.tolist(), members, strict=True) if member == number]
        assert clusters.counts[number] == len(inside)
        assert np.allclose(
            clusters.centroids[number], [sum(column) / len(inside) for column in zip(*inside, strict=True)]
        )
    assert clusters.counts.dtype == members.dtype == np.int64


@pytest.mark.parametrize("wanted", [4, 7])
def test_clusters_cut_further_than_groups_still_count_every_sample(wanted: int) -> None:
    x, _ = cloud([10, 10])
    clusters, members = clusters_of(x, wanted, seed=0)
    assert len(clusters) == wanted
    assert clusters.counts.tolist() == np.bincount(members).tolist()
    assert clusters.counts.sum() == 20
    assert np.allclose(np.average(clusters.centroids, axis=0, weights=clusters.counts), x.mean(axis=0))


def test_fewer_samples_than_clusters_are_clusters_of_their_own() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    clusters, members = clusters_of(x, 5, seed=0)
    assert sorted(map(tuple, clusters.centroids.tolist())) == [(1.0, 2.0), (3.0, 4.0)]
    assert sorted(clusters.counts.tolist()) == [1, 2]
    assert np.allclose(clusters.centroids[members], x)


def test_no_samples_make_no_clusters_of_the_right_width() -> None:
    clusters, members = clusters_of(np.empty((0, 7)), 4, seed=0)
    assert len(clusters) == 0
    assert clusters.centroids.shape == (0, 7)
    assert members.shape == (0,)
    assert clusters.counts.dtype == members.dtype == np.int64


@pytest.mark.parametrize(("samples", "wanted"), [(6, 3), (6, 6), (6, 9), (1, 1)])
def test_identical_features_are_one_cluster_without_a_warning(
    samples: int, wanted: int, recwarn: pytest.WarningsRecorder
) -> None:
    clusters, members = clusters_of(np.full((samples, 4), 2.5), wanted, seed=0)
    assert clusters.centroids.tolist() == [[2.5] * 4]
    assert clusters.counts.tolist() == [samples]
    assert members.tolist() == [0] * samples
    assert not recwarn.list


@pytest.mark.parametrize("least", [1, 2, 4, 100])
def test_small_clusters_are_not_told_and_their_members_are_marked(least: int) -> None:
    sizes = [1, 3, 5, 8]
    x, groups = cloud(sizes, d=4)
    clusters, members = clusters_of(x, 4, seed=0, least=least)
    told = [group for group, size in enumerate(sizes) if size >= least]
    assert sorted(clusters.counts.tolist()) == [sizes[group] for group in told]
    assert np.array_equal(members >= 0, np.isin(groups, told))
    assert same_partition(members[members >= 0], groups[members >= 0])
    assert np.array_equal(clusters.counts, np.bincount(members[members >= 0], minlength=len(told)))
    for number in range(len(told)):
        assert np.allclose(clusters.centroids[number], x[members == number].mean(axis=0))
    assert clusters.centroids.shape == (len(told), 4)


def test_no_more_clusters_are_made_than_could_be_told() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    clusters, members = clusters_of(x, 80, seed=0, least=10)
    assert len(clusters) <= 2
    assert (members >= 0).sum() >= 10
    assert clusters_of(x, 80, seed=0, least=20)[0].counts.tolist() == [20]


def test_the_same_seed_gives_the_same_clusters() -> None:
    x = np.random.default_rng(0).normal(size=(60, 5))
    first, again = (clusters_of(x, 7, seed=3) for _ in range(2))
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


def test_clusters_that_k_means_leaves_empty_are_no_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gappy:
        labels_ = np.array([4, 1, 4, 9])

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def fit(self, *_: object, **__: object) -> Gappy:
            return self

    monkeypatch.setattr("sklearn.cluster.KMeans", Gappy)
    assert kmeans(np.zeros((4, 1)), 2, seed=0).tolist() == [1, 0, 1, 2]


def test_weights_pull_a_cluster_boundary() -> None:
    # Of 0, 4 and 7 the nearest two are together, unless both are so heavy that 0 costs less.
    x = np.array([[0.0], [4.0], [7.0]])
    light = kmeans(x, 2, seed=0, weights=np.array([1, 1, 1]))
    heavy = kmeans(x, 2, seed=0, weights=np.array([1, 50, 50]))
    assert light.tolist() in ([0, 1, 1], [1, 0, 0])
    assert heavy.tolist() in ([0, 0, 1], [1, 1, 0])


def test_means_are_weighted_and_leave_out_what_belongs_nowhere() -> None:
    x = np.array([[1.0, 0.0], [3.0, 6.0], [100.0, 100.0], [5.0, 5.0]])
    members = np.array([0, 0, -1, 1])
    assert means_of(x, members).tolist() == [[2.0, 3.0], [5.0, 5.0]]
    assert means_of(x, members, np.array([3, 1, 9, 2])).tolist() == [[1.5, 1.5], [5.0, 5.0]]
    assert means_of(x, np.full(4, -1)).shape == (0, 2)


def test_parts_are_joined_in_order_and_nothing_has_a_width() -> None:
    one = Clusters(np.array([[1.0, 2.0]]), np.array([4]))
    two = Clusters(np.array([[3.0, 4.0], [5.0, 6.0]]), np.array([7, 8]))
    joined = Clusters.joined([one, Clusters.joined([], 2), two], 2)
    assert joined.centroids.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert joined.counts.tolist() == [4, 7, 8]
    assert len(joined) == 3
    nothing = Clusters.joined([], 9)
    assert nothing.centroids.shape == (0, 9)
    assert nothing.counts.dtype == np.int64


def test_clusters_are_taken_by_position_or_by_mask() -> None:
    three = Clusters(np.arange(6.0).reshape(3, 2), np.array([4, 5, 6]))
    assert three.at(np.array([2, 0])).counts.tolist() == [6, 4]
    assert three.at(np.array([False, True, False])).centroids.tolist() == [[2.0, 3.0]]


def test_a_known_cluster_belongs_to_its_commonest_class() -> None:
    labels = np.array([[1, 5, 0], [2, 0, 2], [0, 0, 3]])
    known = KnownClasses(np.zeros((3, 2)), Clusters(np.zeros((3, 2)), labels.sum(1)), labels)
    assert known.majority.tolist() == [1, 0, 2]
