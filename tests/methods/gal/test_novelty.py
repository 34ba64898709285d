"""Which samples are novel: cosines, histograms, and thresholds compared with counts of the samples themselves."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from fedwild.methods.gal.novelty import (
    BINS,
    accepting_threshold,
    bin_edge,
    cosine_histogram,
    is_novel,
    max_cosine,
    max_known_share,
    nearest_prototype,
    novelty_threshold,
    separating_threshold,
)

Samples = np.ndarray
EDGES = [-1 + 2 * i / BINS for i in range(BINS + 1)]
ACCEPTS = [0.5, 0.8, 0.9, 0.95, 0.99, 1.0]
SEPARABLE = {"known": (30.0, 3.0), "novel": (10.0, 12.0)}
OVERLAPPING = {"known": (12.0, 3.0), "novel": (5.0, 5.0)}


def cosines(a: float, b: float, n: int, seed: int) -> Samples:
    """Return cosines between 0 and 1, as in networks with rectified features."""
    return np.random.default_rng(seed).beta(a, b, size=n)


def counted(values: Samples) -> np.ndarray:
    return cosine_histogram(torch.as_tensor(values)).double().numpy()


def pool_of(kind: dict[str, tuple[float, float]], known: int, novel: int, seed: int = 1) -> Samples:
    return np.concatenate([cosines(*kind["known"], known, seed), cosines(*kind["novel"], novel, seed + 100)])


# --- cosines and histograms -----------------------------------------------------------------------------------


def test_max_cosine_is_the_largest_cosine_to_any_row() -> None:
    z = torch.tensor([[3.0, 4.0], [0.0, -2.0], [1.0, 0.0]])
    rows = torch.tensor([[10.0, 0.0], [0.0, 0.5]])
    assert max_cosine(z, rows).tolist() == pytest.approx([0.8, 0.0, 1.0])
    assert max_cosine(torch.empty(0, 2), rows).shape == (0,)


def test_the_nearest_prototype_has_the_largest_cosine() -> None:
    z = torch.tensor([[1.0, 0.1], [0.1, 1.0]])
    prototypes = torch.tensor([[0.7, 0.7], [90.0, 0.0], [0.0, 50.0]])
    assert nearest_prototype(z, prototypes).tolist() == [1, 2]


def test_a_histogram_counts_every_cosine_between_its_edges() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, size=500)
    found = counted(values)
    expected = [sum(low <= v < high for v in values) for low, high in pairwise(EDGES)]
    assert found.shape == (BINS,)
    # Because of rounding, a cosine at an edge may be on either side of it.
    assert np.abs(np.cumsum(found) - np.cumsum(expected)).max() <= 1
    assert found.sum() == 500


def test_cosines_at_and_beyond_the_ends_are_counted() -> None:
    found = counted(np.array([-1.0, 1.0, 1.0000001, -1.5]))
    assert found[0] == 2
    assert found[-1] == 2
    assert counted(np.empty(0)).sum() == 0


def test_edges_are_between_minus_1_and_1() -> None:
    assert [bin_edge(0), bin_edge(BINS // 2), bin_edge(BINS)] == [-1.0, 0.0, 1.0]


# --- the accepting threshold ----------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ACCEPTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_accepting_threshold_is_the_largest_edge_with_enough_known_samples_above(accept: float, seed: int) -> None:
    values = cosines(8, 3, 237, seed)
    allowed = [edge for edge in EDGES if (values < edge - 1e-6).mean() <= 1 - accept + 1e-9]
    found = accepting_threshold(counted(values), accept)
    assert found == pytest.approx(allowed[-1])
    assert (values >= found - 1e-6).mean() >= accept


def test_the_accepting_threshold_by_hand() -> None:
    known = np.zeros(BINS)
    known[[100, 120, 150]] = [1, 1, 8]
    # Of ten samples, one lies below the edge of bin 120 and two below that of bin 150.
    assert accepting_threshold(known, 1.0) == pytest.approx(bin_edge(100))
    assert accepting_threshold(known, 0.9) == pytest.approx(bin_edge(120))
    assert accepting_threshold(known, 0.8) == pytest.approx(bin_edge(150))
    assert accepting_threshold(known, 0.1) == pytest.approx(bin_edge(150))


def test_without_known_samples_all_samples_may_be_novel() -> None:
    nothing, pool = np.zeros(BINS), counted(cosines(2, 2, 50, 0))
    assert accepting_threshold(nothing, 0.95) == 1.0
    assert separating_threshold(nothing, pool, 0.95) == 1.0
    assert separating_threshold(nothing, nothing, 0.95) == 1.0
    assert max_known_share(nothing, pool) == 0.0


def test_without_a_pool_the_threshold_is_the_accepting_one() -> None:
    known = counted(cosines(12, 3, 300, 0))
    assert max_known_share(known, np.zeros(BINS)) == 0.0
    assert separating_threshold(known, np.zeros(BINS), 0.9) == accepting_threshold(known, 0.9) < 1.0


# --- the separating threshold ---------------------------------------------------------------------------------


def test_the_known_share_is_the_smallest_ratio_of_upper_tails_by_hand() -> None:
    known, pool = np.zeros(BINS), np.zeros(BINS)
    known[[120, 150, 180]] = [2, 4, 4]
    pool[[50, 130, 160, 190]] = [10, 4, 4, 2]
    # From -1: 1 / 1; from bin 121: (10 / 20) / (8 / 10); from 151: (6 / 20) / (4 / 10); from 161: (2 / 20) / (4 / 10).
    assert max_known_share(known, pool) == pytest.approx(0.25)


def test_tails_with_less_than_a_tenth_of_the_known_samples_are_ignored() -> None:
    known, pool = np.zeros(BINS), np.zeros(BINS)
    known[[150, 190]] = [95, 5]
    pool[[40, 150]] = [50, 50]
    # No sample of the pool is above bin 151, where only 5 % of the known ones are.
    assert max_known_share(known, pool) == pytest.approx(0.5)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_known_share_of_a_mixture_is_estimated(share: float, seed: int) -> None:
    # Noise makes the smallest of many ratios too small, and the tail of novel samples makes it too large.
    for n, noise in ((2000, 0.2), (40_000, 0.05)):
        for kind, tail in ((SEPARABLE, 0.001), (OVERLAPPING, 0.1)):
            pool = pool_of(kind, int(n * share), n - int(n * share), seed)
            found = max_known_share(counted(cosines(*kind["known"], n, seed + 50)), counted(pool))
            assert share * (1 - noise) <= found <= share * (1 + noise) + (1 - share) * tail


def test_all_of_a_separable_pool_without_known_samples_is_novel() -> None:
    known = counted(cosines(*SEPARABLE["known"], 1000, 0))
    pool = pool_of(SEPARABLE, 0, 800)
    threshold = separating_threshold(known, counted(pool), 0.95)
    assert (pool < threshold).all()
    # If it is not separable, more samples are novel than with the accepting threshold.
    known, pool = counted(cosines(*OVERLAPPING["known"], 1000, 0)), pool_of(OVERLAPPING, 0, 800)
    threshold = separating_threshold(known, counted(pool), 0.95)
    assert (pool < threshold).mean() > 0.98
    assert (pool < accepting_threshold(known, 0.95)).mean() < 0.8


def test_a_pool_of_known_samples_gets_the_accepting_threshold() -> None:
    known, pool = (counted(cosines(*OVERLAPPING["known"], 2000, seed)) for seed in (0, 1))
    assert max_known_share(known, pool) > 0.9
    assert separating_threshold(known, pool, 0.95) == accepting_threshold(known, 0.95)


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_the_threshold_maximises_novel_minus_known_samples(share: float) -> None:
    """Compare with all thresholds, using the true kind of each sample."""
    n = 4000
    known = counted(cosines(*OVERLAPPING["known"], 3000, 7))
    pool = pool_of(OVERLAPPING, int(n * share), n - int(n * share))
    is_known = np.arange(n) < n * share
    threshold = separating_threshold(known, counted(pool), 0.95)

    def gain(edge: float) -> float:
        return float(((pool < edge) & ~is_known).mean() - ((pool < edge) & is_known).mean())

    assert gain(threshold) > max(gain(edge) for edge in EDGES) - 0.02
    assert gain(threshold) > gain(accepting_threshold(known, 0.95)) + 0.02


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [SEPARABLE, OVERLAPPING], ids=["separable", "overlapping"])
def test_thresholds_fall_with_accept_and_the_separating_one_is_never_below_the_accepting_one(
    kind: dict[str, tuple[float, float]], seed: int
) -> None:
    known = counted(cosines(*kind["known"], 150, seed))
    pool = counted(pool_of(kind, 60, 90, seed + 10))
    pairs = [(accepting_threshold(known, accept), separating_threshold(known, pool, accept)) for accept in ACCEPTS]
    assert all(apart >= plain for plain, apart in pairs)
    assert pairs == sorted(pairs, reverse=True)
    assert pairs[0][0] > pairs[-1][0]


def test_a_cosine_equal_to_the_threshold_is_known() -> None:
    # The inequality in Eq. 5 is strict.
    z, rows = torch.tensor([[1.0, 0.0], [1.0, math.sqrt(3)]]), torch.tensor([[1.0, 0.0]])
    assert (max_cosine(z, rows) < bin_edge(150)).tolist() == [False, False]
    assert (max_cosine(z, rows) < bin_edge(151)).tolist() == [False, True]


def test_the_rule_chooses_the_threshold() -> None:
    known, pool = counted(cosines(*OVERLAPPING["known"], 150, 0)), counted(pool_of(OVERLAPPING, 60, 90))
    assert novelty_threshold(known, pool, "fixed", 0.9, 0.37) == 0.37
    assert novelty_threshold(known, pool, "accept", 0.9, 0.37) == accepting_threshold(known, 0.9)
    assert novelty_threshold(known, pool, "separate", 0.9, 0.37) == separating_threshold(known, pool, 0.9)


def test_samples_of_inherited_classes_are_novel_only_below_r() -> None:
    rows = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    # Cosines: 0.8 to the first row; 0.8 to the second, inherited one; 0.4 to the second one.
    z = torch.tensor([[0.8, 0.0, 0.6], [0.0, 0.8, 0.6], [0.0, 0.4, math.sqrt(0.84)]])
    assert is_novel(z, rows, 0.9, range(1, 2), 0.5).tolist() == [True, False, True]
    assert is_novel(z, rows, 0.9, range(2, 2), 0.5).tolist() == [True, True, True]
    assert is_novel(z, rows, 0.7, range(1, 2), 0.9).tolist() == [False, False, True]
