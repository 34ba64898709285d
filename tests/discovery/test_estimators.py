"""Estimators: PPM against scikit-learn's DBSCAN, and every estimator on mixtures that it should solve."""

from __future__ import annotations

import inspect
import time
from typing import Any

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform
from sklearn.cluster import DBSCAN
from sklearn.metrics import adjusted_rand_score

from fedwild.core.component import summary_of
from fedwild.core.rng import Rng
from fedwild.discovery import (
    ESTIMATORS,
    ClassCount,
    Clusters,
    Committee,
    Estimate,
    Estimator,
    Given,
    KnownClasses,
    MaxAccuracy,
    MaxAccuracyPIM,
    PotentialPrototypeMerge,
    base,
    cluster_embeddings,
)
from fedwild.discovery.base import find_prototypes
from fedwild.discovery.committee import LINKAGES, Metric, best_radii, follow_merges, middle_argmax
from fedwild.discovery.macc import Quality, entropies, search, separation
from fedwild.discovery.pool import Floats, Ints, cluster_means
from fedwild.discovery.ppm import count_dense_regions, rising_radii

CLIENTS = 10
QUICK: dict[str, dict[str, Any]] = {"macc-pim": {"epochs": 5}}
"""Settings that make an estimator fast, for tests in which its number does not matter."""


def estimator(name: str, **settings: Any) -> Estimator:
    kind = ESTIMATORS.get(name)
    return kind(kind.Params(**settings))


def clusters_of(x: Floats, y: Ints, c_l: int, rng: np.random.Generator) -> tuple[Clusters, Ints]:
    """Return the clusters of ten clients that share each class by Dirichlet(0.1), and their samples by class."""
    classes = int(y.max()) + 1
    owner = np.empty(len(y), dtype=np.int64)
    for c in range(classes):
        owner[y == c] = rng.choice(CLIENTS, size=int((y == c).sum()), p=rng.dirichlet([0.1] * CLIENTS))
    parts, labels = [], [np.zeros((0, classes), dtype=np.int64)]
    for client in range(CLIENTS):
        mine = owner == client
        clusters, members = cluster_embeddings(x[mine], c_l, seed=client)
        parts.append(clusters)
        labels.append(np.zeros((len(clusters), classes), dtype=np.int64))
        np.add.at(labels[-1], (members, y[mine]), 1)
    return Clusters.joined(parts, x.shape[1]), np.concatenate(labels)


def mixture(classes: int, c_l: int, d: int, seed: int, per_class: int = 100) -> Clusters:
    """Return clusters of Gaussian classes of variance 1, with centres of variance 4 in each of d dimensions.

    Centres are sqrt(1 + 4) times as far apart as two samples of a class. A class has up to c_l clusters per client,
    most of them with few samples.
    """
    return mixture_with_known(classes, 0, c_l, d, seed, per_class)[0]


def mixture_with_known(
    novel: int, known: int, c_l: int, d: int, seed: int, per_class: int = 60
) -> tuple[Clusters, KnownClasses]:
    """Return novel and known classes of one such mixture, clustered in the same way."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(novel + known, d))
    y = np.repeat(np.arange(novel + known), per_class)
    x = centres[y] + rng.normal(size=(len(y), d))
    pool, _ = clusters_of(x[y < novel], y[y < novel], c_l, rng)
    if not known:
        return pool, nothing_known(d)
    clusters, labels = clusters_of(x[y >= novel], y[y >= novel] - novel, c_l, rng)
    return pool, KnownClasses(centres[novel:], clusters, labels)


def nothing_known(d: int, rows: int = 2) -> KnownClasses:
    """Return known classes with rows of the head but without labelled samples."""
    return KnownClasses(np.eye(rows, d), Clusters.joined([], d), np.zeros((0, rows), dtype=np.int64))


def tight(novel: int, known: int, seed: int) -> tuple[Clusters, KnownClasses]:
    """Return orthogonal classes with twelve clusters per novel class, closer than MACC's pseudo-labelled samples.

    With too few clusters, k-means merges the known classes, which have less weight; with too many, it splits them.
    """
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.normal(size=(novel + known, novel + known)))[0]
    x = np.repeat(axes[:novel], 12, axis=0) + 0.002 * rng.normal(size=(12 * novel, novel + known))
    clusters = Clusters(axes[novel:], np.ones(known, dtype=np.int64))
    return Clusters(x, np.ones(len(x), dtype=np.int64)), KnownClasses(
        axes[novel:], clusters, np.eye(known, dtype=np.int64)
    )


def peak(pool: Clusters, steps: int = 50) -> int:
    """Return the number of PPM, without limits and prototypes, which take longer."""
    ppm = PotentialPrototypeMerge(PotentialPrototypeMerge.Params(steps=steps))
    return int(max(count for _, count in ppm.curve(pool)))


# --- every estimator ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ESTIMATORS.names())
def test_without_clusters_there_are_no_classes(name: str) -> None:
    found = estimator(name).estimate(Clusters.joined([], 5), nothing_known(5), Rng(0))
    assert (found.number, found.low, found.high) == (0, 0, 0)
    assert found.prototypes.shape == (0, 5)
    assert found.assigned.shape == (0,)
    assert found.to_json() == {"number": 0, "low": 0, "high": 0, "curve": []}


@pytest.mark.parametrize("known", [nothing_known(4, 1), nothing_known(4, 3), mixture_with_known(1, 3, 3, 4, 0)[1]])
@pytest.mark.parametrize("copies", [1, 2, 5])
@pytest.mark.parametrize("name", ESTIMATORS.names())
def test_identical_clusters_are_one_class(name: str, copies: int, known: KnownClasses) -> None:
    place = np.array([1.0, 2.0, 0.0, 3.0])
    pool = Clusters(np.tile(place, (copies, 1)), np.arange(copies) + 3)
    found = estimator(name, **QUICK.get(name, {})).estimate(pool, known, Rng(0))
    assert found.number == 1
    assert found.prototypes.shape == (1, 4)
    assert np.allclose(found.prototypes, place)
    assert found.assigned.tolist() == [0] * copies
    assert found.low == 1 <= found.high


@pytest.mark.parametrize("name", ESTIMATORS.names())
def test_prototypes_are_means_of_their_clusters_and_reproducible(name: str) -> None:
    pool, known = tight(6, 4, 0) if "macc" in name else mixture_with_known(6, 4, 4, 10, seed=1, per_class=30)
    pool = Clusters(pool.centroids, 1 + np.arange(len(pool)) % 5)
    more = {"given": {"classes": 3}, "macc": {"per_class": 10}, "macc-pim": {"per_class": 10}}
    settings = {**QUICK.get(name, {}), **more.get(name, {})}
    found, again = (estimator(name, **settings).estimate(pool, known, Rng(5)) for _ in range(2))
    assert found.number == len(found.prototypes) > 1
    assert found.prototypes.shape[1] == 10
    assert found.assigned.shape == (len(pool),)
    assert set(found.assigned.tolist()) == set(range(found.number))
    # PPM gives all clusters the same weight, the others weight them by their samples.
    weights = np.ones(len(pool)) if name == "ppm" else pool.counts
    for number in range(found.number):
        inside = found.assigned == number
        mean = np.average(pool.centroids[inside], axis=0, weights=weights[inside])
        assert np.allclose(found.prototypes[number], mean)
    assert 1 <= found.low <= found.number <= found.high
    assert found.to_json() == again.to_json()
    assert np.array_equal(found.prototypes, again.prototypes)
    assert np.array_equal(found.assigned, again.assigned)


@pytest.mark.parametrize("name", ESTIMATORS.names())
def test_an_estimator_gets_no_labels_of_unlabelled_samples(name: str) -> None:
    assert list(inspect.signature(ESTIMATORS.get(name).estimate).parameters) == ["self", "pool", "known", "rng"]
    assert set(Clusters.__dataclass_fields__) == {"centroids", "counts", "clients"}
    assert summary_of(ESTIMATORS.get(name)).endswith(".")


def test_given_is_limited_by_the_number_of_clusters() -> None:
    pool = mixture(5, 4, 8, seed=0, per_class=40)
    found = estimator("given", classes=7).estimate(pool, nothing_known(8), Rng(0))
    assert (found.number, found.low, found.high, found.curve) == (7, 7, 7, [])
    few = estimator("given", classes=7).estimate(pool.at(np.arange(2)), nothing_known(8), Rng(0))
    assert (few.number, few.low, few.high) == (2, 2, 7)
    assert isinstance(estimator("given"), Given)


def test_clusters_of_few_samples_have_no_class() -> None:
    # Two classes, and one cluster of two samples so far away that k-means gives it a separate prototype.
    x = np.array([[0.0], [1.0], [20.0], [21.0], [500.0]])
    pool = Clusters(x, np.array([30, 10, 20, 20, 2]))
    plain = find_prototypes(pool, 2, (2, 2), [], seed=0)
    assert sorted(plain.prototypes[:, 0].tolist()) == pytest.approx([(10 + 20 * 20 + 20 * 21) / 80, 500.0])
    found = find_prototypes(pool, 2, (2, 2), [], seed=0, min_share=0.05)
    assert sorted(found.prototypes[:, 0].tolist()) == pytest.approx([0.25, 20.5])
    assert found.assigned[4] == -1
    assert found.assigned[0] == found.assigned[1] != found.assigned[2] == found.assigned[3]
    # If all are small, all are kept.
    alone = find_prototypes(pool, 5, (5, 5), [], seed=0, min_share=0.9)
    assert (alone.number, min(alone.assigned)) == (5, 0)


def test_of_many_clusters_a_random_subset_is_used_and_all_get_the_nearest_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    class Recorded(Given):
        def _estimate(self, pool: Clusters, known: KnownClasses, rng: Rng) -> Estimate:
            seen.append((len(pool), len(known.clusters), len(known.labels)))
            return super()._estimate(pool, known, rng)

    monkeypatch.setattr(base, "MAX_CLUSTERS", 25)
    pool, reference = mixture_with_known(3, 6, 6, 32, seed=0)
    assert min(len(pool), len(reference.clusters)) > 25
    found = Recorded(Given.Params(classes=3)).estimate(pool, reference, Rng(0))
    assert seen == [(25, 25, 25)]
    distances = ((pool.centroids[:, None] - found.prototypes) ** 2).sum(axis=2)
    assert found.assigned.tolist() == distances.argmin(axis=1).tolist()
    assert found.number == 3


def test_a_class_count_survives_json() -> None:
    curve, assigned = [(0.5, 3.0), (1.0, 2.0)], np.zeros(3, dtype=np.int64)
    found = Estimate(3, 2, 4, curve, prototypes=np.zeros((3, 1)), assigned=assigned)
    assert found.to_json() == {"number": 3, "low": 2, "high": 4, "curve": [[0.5, 3.0], [1.0, 2.0]]}
    assert ClassCount.from_json(found.to_json()) == ClassCount(3, 2, 4, curve)


# --- potential prototype merge --------------------------------------------------------------------------------


def dbscan_counts(distances: Floats, at: Floats) -> list[int]:
    """Return the number of clusters by scikit-learn, without noise."""
    square = squareform(distances)
    labels = [DBSCAN(eps=radius, min_samples=2, metric="precomputed").fit(square).labels_ for radius in at]
    return [len(set(found.tolist()) - {-1}) for found in labels]


@pytest.mark.parametrize("duplicates", [0, 7])
@pytest.mark.parametrize(("points", "d"), [(2, 3), (3, 1), (25, 2), (60, 8)])
@pytest.mark.parametrize("seed", range(3))
def test_dense_regions_are_dbscan_s_clusters_at_all_51_radii(seed: int, points: int, d: int, duplicates: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(points, d)) + 4 * rng.integers(3, size=(points, 1))
    x = np.concatenate([x, x[rng.integers(points, size=duplicates)]])
    distances = pdist(x)
    at = rising_radii(distances, 50)
    assert len(at) == (50 if duplicates else 51)
    found = count_dense_regions(distances, len(x), at).tolist()
    assert found == dbscan_counts(distances, at)
    # The counts differ, so that the agreement is not trivial.
    assert points < 25 or len(set(found)) > 2


def test_radii_rise_from_the_smallest_to_the_largest_distance_in_equal_steps() -> None:
    # Points at 0, 1 and 5.
    assert rising_radii(np.array([1.0, 5.0, 4.0]), 4).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    # A radius of 0 is omitted.
    assert rising_radii(np.array([0.0, 4.0, 4.0]), 4).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert rising_radii(np.zeros(3), 50).tolist() == []


def test_the_number_is_the_largest_number_of_dense_regions() -> None:
    # Three pairs, 1 wide, 10 apart, and a single distant point, which is noise until all regions are merged.
    x = np.array([[0.0], [1.0], [11.0], [12.0], [22.0], [23.0], [123.0]])
    found = estimator("ppm").estimate(Clusters(x, np.ones(7, dtype=np.int64)), nothing_known(1), Rng(0))
    assert found.number == 3
    assert len(found.curve) == 51
    assert found.curve[0] == (1.0, 3.0)
    assert found.curve[-1] == (123.0, 1.0)


def test_more_steps_find_more_regions() -> None:
    pool = mixture(10, 40, 16, seed=0, per_class=40)
    assert peak(pool, steps=1) < peak(pool, steps=200)
    found = estimator("ppm", steps=3).estimate(pool, nothing_known(16), Rng(0))
    assert len(found.curve) == 4
    assert found.number == peak(pool, steps=3)


@pytest.mark.parametrize(("classes", "c_l", "off"), [(20, 80, 2), (10, 40, 2), (4, 16, 1)])
def test_ppm_counts_gaussian_classes_of_ten_clients_for_ten_seeds(classes: int, c_l: int, off: int) -> None:
    """In 128 dimensions, all clusters of a class merge within one step of the radius, while classes stay apart.

    Distances within a class are nearly equal there. In 16 dimensions they are not: pairs of clusters merge before the
    others, and the maximum over radii counts those pairs (see the next test).
    """
    pools = [mixture(classes, c_l, 128, seed) for seed in range(10)]
    numbers = [peak(pool) for pool in pools]
    assert all(abs(number - classes) <= off for number in numbers), numbers
    found = estimator("ppm").estimate(pools[0], nothing_known(128), Rng(0))
    assert found.number == numbers[0]
    assert found.low <= classes <= found.high


def test_ppm_counts_pairs_of_clusters_in_few_dimensions() -> None:
    numbers = [peak(mixture(10, 40, 16, seed)) for seed in range(3)]
    assert min(numbers) > 12, numbers


def test_800_prototypes_of_512_dimensions_take_seconds() -> None:
    rng = np.random.default_rng(0)
    centres = 2 * rng.normal(size=(20, 512))
    x = centres[rng.integers(20, size=800)] + rng.normal(size=(800, 512))
    begin = time.process_time()
    estimator("ppm").estimate(Clusters(x, np.ones(800, dtype=np.int64)), nothing_known(512), Rng(0))
    # 1.2 s on a core of 2024; the target is 2 s.
    assert time.process_time() - begin < 5


# --- the committee --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("novel", "known"), [(20, 20), (10, 20), (4, 8)])
def test_the_committee_counts_classes_of_the_same_kind_as_known_ones(novel: int, known: int) -> None:
    """In 16 dimensions, where PPM fails."""
    for seed in range(6):
        pool, reference = mixture_with_known(novel, known, known, 16, seed)
        found = estimator("committee").estimate(pool, reference, Rng(0))
        assert abs(found.number - novel) <= 1, (seed, found.number)
        assert found.low <= found.number <= found.high
        assert found.low <= novel <= found.high
        assert sum(votes for _, votes in found.curve) == 18


def test_the_committee_is_exact_where_classes_are_far_apart() -> None:
    for seed in range(3):
        pool, reference = mixture_with_known(10, 10, 10, 64, seed)
        assert estimator("committee").estimate(pool, reference, Rng(0)).number == 10


def test_the_number_is_the_median_of_the_votes_and_the_limits_contain_most_of_them() -> None:
    pool, reference = mixture_with_known(10, 20, 20, 16, seed=1)
    committee = Committee(Committee.Params())
    votes = np.sort(committee.votes(pool, reference))
    found = committee.estimate(pool, reference, Rng(0))
    assert len(votes) == 18
    assert found.number == int((votes[8] + votes[9]) / 2)
    assert ((votes >= found.low) & (votes <= found.high)).mean() >= 0.8
    assert found.low > votes[0] or votes[2] == votes[0]


def with_a_tiny_class() -> tuple[Clusters, KnownClasses]:
    """Return four classes of sixty samples, and one of two."""
    pool, reference = mixture_with_known(4, 8, 8, 64, seed=0)
    far = np.full((2, 64), 40.0) + np.array([[0.0], [0.1]])
    return Clusters.joined([pool, Clusters(far, np.array([1, 1]))], 64), reference


def test_a_class_with_few_samples_counts_if_smallest_allows_it() -> None:
    pool, reference = with_a_tiny_class()
    assert 2 / pool.counts.sum() < 0.01
    numbers = {s: estimator("committee", smallest=s).estimate(pool, reference, Rng(0)).number for s in (0.02, 0.002)}
    assert numbers == {0.02: 4, 0.002: 5}


def test_the_smallest_share_is_at_most_half_that_of_a_known_class() -> None:
    # With 150 known classes, a group with 1/300 of the samples counts, whatever the setting `smallest` is.
    pool, reference = with_a_tiny_class()
    wide = KnownClasses(reference.rows, reference.clusters, np.pad(reference.labels, ((0, 0), (0, 142))))
    assert estimator("committee", smallest=0.5).estimate(pool, wide, Rng(0)).number == 5


@pytest.mark.parametrize("clusters", [0, 1])
def test_without_known_clusters_the_committee_finds_one_class(clusters: int) -> None:
    pool = mixture(6, 6, 8, seed=0, per_class=40)
    one = Clusters(np.ones((clusters, 8)), np.full(clusters, 3))
    reference = KnownClasses(np.eye(2, 8), one, np.full((clusters, 2), 1))
    found = estimator("committee").estimate(pool, reference, Rng(0))
    assert (found.number, found.low, found.high) == (1, 1, 1)


def test_the_committee_accepts_identical_known_clusters() -> None:
    pool = mixture(3, 3, 8, seed=0, per_class=40)
    reference = KnownClasses(np.eye(2, 8), Clusters(np.ones((4, 8)), np.full(4, 3)), np.array([[3, 0], [0, 3]] * 2))
    assert estimator("committee").estimate(pool, reference, Rng(0)).number >= 1


def classes_of(kind: str, m: int) -> Ints:
    return {"mixed": np.arange(m) % 3, "one": np.zeros(m, dtype=np.int64), "own": np.arange(m)}[kind]


@pytest.mark.parametrize("method", LINKAGES)
@pytest.mark.parametrize("kind", ["mixed", "one", "own"])
def test_groups_after_merges_are_those_of_scipy_s_cuts(method: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    m = 30
    classes = classes_of(kind, m)
    x = rng.normal(size=(m, 4)) + 3 * classes[:, None]
    if kind == "mixed":
        x[-3:] = x[:3]
    counts = rng.integers(1, 9, size=m)
    tree, found = linkage(x, method), follow_merges(x, method, counts, 0.1, classes)
    assert len(set(found.groups.tolist())) >= 3
    for radius, groups, agreement in zip(found.radii, found.groups, found.agreement, strict=True):
        members = fcluster(tree, radius, "distance")
        sizes = [counts[members == group].sum() for group in np.unique(members)]
        assert groups == found.groups_at(radius) == sum(size >= 0.1 * counts.sum() for size in sizes)
        assert agreement == pytest.approx(adjusted_rand_score(classes, members), abs=1e-9)
    # There is an entry for every distinct height.
    assert len(found.radii) == len(np.unique(np.append(0, tree[:, 2])))


def test_radii_are_chosen_by_the_number_of_known_classes_and_by_agreement() -> None:
    # Classes at 0 and 100 with clusters 1 apart, and one cluster of class 1 at 130.
    x = np.array([[0.0], [1.0], [2.0], [100.0], [101.0], [102.0], [130.0]])
    labels = np.array([[5, 0]] * 3 + [[0, 5]] * 4)
    counts = labels.sum(axis=1)
    reference = KnownClasses(np.eye(2, 1), Clusters(x, counts), labels)
    by_number, by_agreement = best_radii(follow_merges(x, "complete", counts, 0.0, reference.majority), reference)
    for radius in (by_number, by_agreement):
        assert 30 < radius < 130
    # If clusters with few samples do not count, there are two groups at a smaller radius.
    early, late = best_radii(follow_merges(x, "complete", counts, 0.2, reference.majority), reference)
    assert early < 30 < late


def test_the_middle_of_equally_good_radii_is_taken() -> None:
    assert middle_argmax(np.array([0.0, 3.0, 3.0, 3.0, 1.0])) == 2
    assert middle_argmax(np.array([5.0])) == 0


def test_directions_with_a_large_spread_within_classes_have_less_weight() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.eye(2, dtype=np.int64), 200, axis=0)
    x = rng.normal(size=(400, 2)) * [10.0, 1.0] + labels[:, :1] * [0.0, 50.0]
    metric = Metric.of(KnownClasses(np.eye(2), Clusters(x, np.ones(400, dtype=np.int64)), labels))
    plain, whitened, directions = metric.views(x)
    assert plain is x
    scatter = np.concatenate([part - part.mean(axis=0) for part in (whitened[:200], whitened[200:])])
    # Shrunk by the mean variance of 50.5: 100 / (100 + 50.5) and 1 / (1 + 50.5).
    assert np.linalg.eigvalsh(scatter.T @ scatter / 400) == pytest.approx([1 / 51.5, 100 / 150.5], rel=0.1)
    assert np.allclose(np.linalg.norm(directions, axis=1), 1)


# --- MACC and MACC-PIM ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("novel", "known"), [(3, 7), (10, 7), (10, 10)])
@pytest.mark.parametrize("seed", [0, 1])
def test_macc_finds_the_classes_of_clear_mixtures(novel: int, known: int, seed: int) -> None:
    pool, reference = mixture_with_known(novel, known, known, 64, seed, per_class=100)
    found = estimator("macc").estimate(pool, reference, Rng(seed))
    assert found.number == novel
    # The accuracy alone does not decide: it is the same for many numbers.
    best = max(accuracy for _, accuracy in found.curve)
    assert sum(accuracy == best for _, accuracy in found.curve) > 1
    near = [number for number, accuracy in found.curve if accuracy >= best - 0.01]
    assert (found.low, found.high) == (min(near), max(near))


@pytest.mark.parametrize(("novel", "known"), [(3, 7), (10, 7)])
def test_macc_pim_finds_them_too(novel: int, known: int) -> None:
    pool, reference = mixture_with_known(novel, known, known, 64, seed=0, per_class=100)
    found = estimator("macc-pim", epochs=20).estimate(pool, reference, Rng(0))
    assert found.number == novel
    assert dict(found.curve)[float(found.number)] == max(accuracy for _, accuracy in found.curve)


@pytest.mark.parametrize(("novel", "known"), [(6, 4), (10, 5), (4, 8)])
@pytest.mark.parametrize("seed", [0, 1])
def test_macc_finds_the_number_that_neither_merges_nor_splits_known_classes(novel: int, known: int, seed: int) -> None:
    pool, reference = tight(novel, known, seed)
    found = estimator("macc", per_class=10).estimate(pool, reference, Rng(seed))
    assert found.number == novel
    numbers = [number for number, _ in found.curve]
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (1.0, float(len(pool)))


def test_of_equally_accurate_numbers_the_one_with_the_best_separated_clusters_is_taken() -> None:
    axes = np.eye(7)
    pool = Clusters(
        np.repeat(axes[3:], 5, axis=0) + 0.01 * np.random.default_rng(0).normal(size=(20, 7)),
        np.ones(20, dtype=np.int64),
    )

    class Made(MaxAccuracy):
        def cluster(self, mixed: Any, number: int, rng: Rng) -> Ints:
            """Return clusters that are correct for the known classes, and correct for the others if number is 7."""
            others = np.repeat(np.arange(4), 5) if number == 7 else np.arange(20) % max(1, number - 3)
            return np.concatenate([mixed.labels, 3 + others])

    found = Made(MaxAccuracy.Params()).estimate(pool, nothing_known(7, rows=3), Rng(0))
    assert {accuracy for _, accuracy in found.curve} == {1.0}
    assert (found.number, found.low, found.high) == (4, 1, 20)


@pytest.mark.parametrize("best", [1, 2, 5, 77, 150])
def test_the_search_finds_the_top_of_a_curve(best: int) -> None:
    tried = search(lambda n: Quality(1 - abs(n - best) / 150, 0.0), 150)
    assert max(tried, key=lambda n: tried[n]) == best
    assert list(tried) == sorted(tried)
    assert {max(1, best - 1), min(150, best + 1)} <= set(tried)
    assert min(tried) == 1 and max(tried) == 150 and len(tried) < 30


def test_the_search_decides_between_equal_accuracies_by_separation() -> None:
    tried = search(lambda n: Quality(1.0 if 4 <= n <= 60 else 0.5, 1 / n), 150)
    assert max(tried, key=lambda n: tried[n]) == 4


def test_separation_is_the_mean_silhouette() -> None:
    x, found = np.array([[0.0], [1.0], [5.0], [7.0]]), np.array([0, 0, 1, 1])
    # (b - a) / max(a, b) with the mean distances to the own and to the other cluster.
    expected = np.mean([5 / 6, 4 / 5, 2.5 / 4.5, 4.5 / 6.5])
    assert separation(x, found) == pytest.approx(expected)
    assert separation(x, np.zeros(4, dtype=np.int64)) == separation(x, np.arange(4)) == -1.0


def test_no_more_than_the_largest_number_of_classes_is_tried() -> None:
    pool, reference = tight(10, 5, seed=0)
    found = estimator("macc", largest=7).estimate(pool, reference, Rng(0))
    assert found.curve[-1][0] == 7.0
    assert found.number <= 7


def test_pseudo_labelled_samples_have_variance_001_in_units_of_the_smallest_distance_of_the_pool() -> None:
    rows = np.array([[3.0, 0.0], [0.0, 4.0]])
    # The smallest distance in the pool is 2. The known rows are 5 apart, which must not matter.
    pool = Clusters(np.array([[30.0, 40.0], [30.0, 42.0], [50.0, 0.0]]), np.array([1, 1, 1]))
    reference = KnownClasses(rows, Clusters.joined([], 2), np.zeros((0, 2), dtype=np.int64))
    mixed = MaxAccuracy(MaxAccuracy.Params(per_class=2000)).mix(pool, reference, Rng(0))
    assert mixed.labels.tolist() == [0] * 2000 + [1] * 2000
    assert mixed.x.shape == (4003, 2)
    assert mixed.x[-3].tolist() == pytest.approx([0.6, 0.8])
    assert np.allclose(np.linalg.norm(mixed.x, axis=1), 1)
    # Noise of deviation 0.1 * 2 on rows of length 3 and 4: the tangent of the angle has deviation 0.2 / length.
    assert (mixed.x[:2000, 1] / mixed.x[:2000, 0]).std() == pytest.approx(0.2 / 3, rel=0.1)
    assert (mixed.x[2000:4000, 0] / mixed.x[2000:4000, 1]).std() == pytest.approx(0.2 / 4, rel=0.1)


def test_there_is_one_pseudo_labelled_sample_per_class_and_client() -> None:
    silent, _ = cluster_embeddings(np.empty((0, 3)), 2, seed=0)
    pool = Clusters.joined([*(Clusters(np.eye(3)[[i]], np.array([1])) for i in range(2)), silent], 3)
    mixed = MaxAccuracy(MaxAccuracy.Params()).mix(pool, nothing_known(3), Rng(0))
    # Two clients with clusters, and one without.
    assert pool.clients == pool.at(np.array([1])).clients == 3
    assert mixed.labels.tolist() == [0, 0, 0, 1, 1, 1]


MACC_SETTINGS = [("macc", {"per_class": 3}), ("macc", {"largest": 9})]
PIM_SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("macc-pim", {"epochs": 60}),
    ("macc-pim", {"temperature": 3.0}),
    ("macc-pim", {"certainty": 20.0}),
    ("macc-pim", {"per_class": 3}),
]


@pytest.mark.parametrize(("name", "settings"), MACC_SETTINGS + PIM_SETTINGS)
def test_settings_take_effect_if_classes_overlap(name: str, settings: dict[str, Any]) -> None:
    pool, reference = mixture_with_known(5, 4, 4, 3, seed=0, per_class=40)
    base = {"per_class": 10, **({"epochs": 30} if name == "macc-pim" else {})}
    plain, changed = (estimator(name, **{**base, **more}).estimate(pool, reference, Rng(0)) for more in ({}, settings))
    assert plain.curve != changed.curve


def pim_by_hand(mixed: Any, start: Floats, epochs: int, temperature: float, certainty: float) -> Ints:
    """Return the clusters after Adam steps written out in NumPy, with the gradient by finite differences."""
    x, labelled = mixed.x, len(mixed.labels)

    def loss(flat: Floats) -> float:
        logits = temperature * x @ flat.reshape(start.shape).T
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        unsure = -(p[labelled:] * np.log(p[labelled:] + 1e-300)).sum(axis=1).mean()
        mean = p.mean(axis=0)
        return float(certainty * unsure + (mean * np.log(mean)).sum())

    w, m, v = start.flatten(), np.zeros(start.size), np.zeros(start.size)
    for t in range(1, epochs + 1):
        steps = 1e-5 * np.eye(len(w))
        g = np.array([loss(w + step) - loss(w - step) for step in steps]) / 2e-5 + 1e-2 * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - 1e-3 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return (x @ w.reshape(start.shape).T).argmax(axis=1)


def test_pim_minimises_its_loss_from_k_means_on() -> None:
    pool, reference = mixture_with_known(5, 4, 4, 3, seed=0, per_class=40)
    pim = MaxAccuracyPIM(MaxAccuracyPIM.Params(per_class=10, epochs=100, temperature=5.0, certainty=1.5))
    mixed = pim.mix(pool, reference, Rng(0))
    start = MaxAccuracy.cluster(pim, mixed, 9, Rng(0))
    found = pim.cluster(mixed, 9, Rng(0))
    assert found.tolist() == pim_by_hand(mixed, cluster_means(mixed.x, start), 100, 5.0, 1.5).tolist()
    assert found.tolist() != start.tolist()


def test_entropies_by_hand() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    by_hand = [np.log(2), 0.0, -(0.2 * np.log(0.2) + 0.3 * np.log(0.3) + 0.5 * np.log(0.5))]
    assert entropies(p).tolist() == pytest.approx(by_hand, abs=1e-6)
