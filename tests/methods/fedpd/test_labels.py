"""Similar label distributions: the distance by hand, chance by enumeration, and decisions that know sample sizes."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedwild.methods.fedpd.labels import MAX_LABEL_DISTANCE, chance_distance, compare_labels, label_distance


def drawn(shares: np.ndarray, samples: int, seed: int) -> Tensor:
    """Label counts of clients with these label distributions (clients, K)."""
    rng = np.random.default_rng(seed)
    return torch.tensor(np.stack([rng.multinomial(samples, row) for row in shares]))


def test_label_distance_by_hand() -> None:
    # Shares (1, 0) and (1/3, 2/3) against (2/4, 2/4): distances 1/2 and 1/6, of 1 and 3 samples.
    assert label_distance(torch.tensor([[1.0, 0.0], [1.0, 2.0]])) == pytest.approx((0.5 * 1 + (1 / 6) * 3) / 4)
    assert label_distance(torch.tensor([[5.0, 10.0], [1.0, 2.0]])) == pytest.approx(0)


@pytest.mark.parametrize("sizes", [(2, 3, 2), (6, 1), (7,)])
@pytest.mark.parametrize("totals", [(3, 2, 2), (6, 1), (4, 3, 0)])
def test_chance_distance_is_the_mean_over_all_assignments(sizes: tuple[int, ...], totals: tuple[int, ...]) -> None:
    labels = [label for label, count in enumerate(totals) for _ in range(count)]
    starts = np.cumsum([0, *sizes])
    found = []
    for order in set(permutations(labels)):
        clients = [order[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        counts = [[client.count(label) for label in range(len(totals))] for client in clients]
        found.append(label_distance(torch.tensor(counts, dtype=torch.float64)))
    by_chance = chance_distance(torch.tensor(sizes).double(), torch.tensor(totals).double())
    assert by_chance == pytest.approx(np.mean(found), abs=1e-12)


@pytest.mark.parametrize("classes", [2, 10, 50, 100])
@pytest.mark.parametrize("samples", [20, 100, 5000])
@pytest.mark.parametrize("clients", [3, 10, 100])
def test_clients_with_random_labels_are_similar(classes: int, samples: int, clients: int) -> None:
    shares = np.full((clients, classes), 1 / classes)
    assert all(compare_labels(drawn(shares, samples, seed)).are_similar for seed in range(20))


@pytest.mark.parametrize(("classes", "distance"), [(50, 0.26), (100, 0.37)])
def test_a_hundred_random_samples_of_many_classes_are_further_apart_than_the_limit(
    classes: int, distance: float
) -> None:
    found = compare_labels(drawn(np.full((10, classes), 1 / classes), 100, 0))
    assert found.found == pytest.approx(distance, abs=0.03)
    assert found.found > MAX_LABEL_DISTANCE and found.are_similar


@pytest.mark.parametrize("classes", [10, 50, 100])
@pytest.mark.parametrize("samples", [30, 100, 5000])
def test_clients_with_skewed_labels_are_different(classes: int, samples: int) -> None:
    rng = np.random.default_rng(0)
    dirichlet = rng.dirichlet(np.full(classes, 0.5), 10)
    few = np.stack([np.isin(np.arange(classes), rng.permutation(classes)[: classes // 5]) for _ in range(10)])
    for shares in (dirichlet, few / few.sum(axis=1, keepdims=True)):
        assert not any(compare_labels(drawn(shares, samples, seed)).are_similar for seed in range(20))


def test_a_small_difference_that_no_chance_explains_does_not_count() -> None:
    found = compare_labels(torch.tensor([[60_000, 40_000], [40_000, 60_000]]))
    assert found.found == pytest.approx(0.1)
    assert found.by_chance < 0.01
    assert found.are_similar
