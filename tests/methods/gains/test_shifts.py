"""Shifts of classes compared with sums in float64, and on average with the known truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedwild.core.errors import BadReply
from fedwild.data.samples import Samples
from fedwild.methods.gains.shifts import (
    MIN_HELD_OUT,
    Statistics,
    check_statistics,
    class_statistics,
    client_shift,
    mean_embeddings,
    nearest_known,
    nearest_shifts,
    own_shift,
    pairwise_shifts,
    pooled_variance,
    shifts_between_sources,
    upper_quantile,
)


class Identity(nn.Module):
    """A network whose embedding is its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding_dim = width
        self.unused = nn.Parameter(torch.zeros(1))

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return x


def samples(x: np.ndarray, y: np.ndarray) -> Samples:
    return Samples(torch.as_tensor(x).float(), torch.as_tensor(y), torch.arange(len(y)))


def statistics(x: np.ndarray, y: np.ndarray, classes: int, at_least: int = 2) -> Statistics:
    network: Any = Identity(x.shape[1])
    return class_statistics(network, samples(x, y), classes, at_least)


def cloud(seed: int, count: int, width: int = 4, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return samples of classes that are 3 apart, as float32."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, count)
    return (rng.normal(size=(count, width)) + 3.0 * y[:, None]).astype(np.float32), y


def by_hand(
    own: tuple[np.ndarray, np.ndarray], c: int, source: tuple[np.ndarray, np.ndarray], k: int, v: float
) -> float:
    """Return s(c; n, k) computed from the samples."""
    mine, theirs = own[0][own[1] == c].astype(float), source[0][source[1] == k].astype(float)
    noise = sum(((part - part.mean(0)) ** 2).sum() / len(part) / (len(part) - 1) for part in (mine, theirs))
    return float((((mine.mean(0) - theirs.mean(0)) ** 2).sum() - noise) / v)


def pooled_by_hand(sources: list[tuple[np.ndarray, np.ndarray]], k: int) -> float:
    """Return V_k computed from the samples."""
    parts = [x[y == k].astype(float) for x, y in sources]
    squares = sum(((part - part.mean(0)) ** 2).sum() for part in parts)
    return float(squares / sum(len(part) - 1 for part in parts))


def test_statistics_are_counts_means_and_summed_variances_of_every_class() -> None:
    x, y = cloud(0, 600)
    found = statistics(x, y, 3)
    for c in range(3):
        mine = x[y == c].astype(float)
        assert found.count[c] == len(mine)
        assert found.mean[c] == pytest.approx(mine.mean(0), abs=1e-12)
        assert found.variance[c] == pytest.approx(mine.var(0).sum(), abs=1e-10)


def test_classes_with_too_few_samples_are_not_sent() -> None:
    x, y = np.arange(12, dtype=float).reshape(6, 2), np.array([0, 0, 0, 1, 1, 2])
    assert statistics(x, y, 4, at_least=3).count.tolist() == [3, 0, 0, 0]
    found = statistics(x, y, 4, at_least=2)
    assert found.count.tolist() == [3, 2, 0, 0]
    # Nothing of the other classes is sent.
    assert not found.mean[2:].any()
    assert not found.variance[2:].any()


def test_statistics_survive_a_payload() -> None:
    found = statistics(*cloud(1, 50), 3)
    again = Statistics.from_tensors(found.to_tensors())
    assert again.count.tolist() == found.count.tolist()
    assert again.count.dtype == np.int64
    assert again.mean == pytest.approx(found.mean, rel=1e-6)
    assert again.variance == pytest.approx(found.variance, rel=1e-6)


def test_variances_are_pooled_within_clients_over_their_degrees_of_freedom() -> None:
    # Clients are far apart, which must not count.
    sources = [cloud(0, 90), cloud(1, 40)]
    sources[1] = (sources[1][0] + 100, sources[1][1])
    found = pooled_variance((statistics(x, y, 3) for x, y in sources), 3)
    assert found == pytest.approx([pooled_by_hand(sources, k) for k in range(3)], rel=1e-6)
    one_two = Statistics(np.array([2, 3]), np.zeros((2, 1)), np.array([1.0, 4.0]))
    three_one = Statistics(np.array([3, 1]), np.zeros((2, 1)), np.array([3.0, 0.0]))
    assert pooled_variance([one_two, three_one], 2).tolist() == [(2 * 1 + 3 * 3) / (1 + 2), 3 * 4 / 2]


def test_a_class_without_two_samples_at_a_client_has_no_variance() -> None:
    lone = Statistics(np.array([1, 5, 0]), np.zeros((3, 2)), np.array([0.0, 2.0, 0.0]))
    found = pooled_variance([lone, lone], 3)
    assert np.isnan(found).tolist() == [True, False, True]
    assert found[1] == 2 * 5 * 2.0 / 8
    assert np.isnan(pooled_variance([], 2)).tolist() == [True, True]


def test_pairwise_shifts_are_those_of_the_formula() -> None:
    own, sources = cloud(0, 60), [cloud(1, 70), cloud(2, 80)]
    of_sources = [statistics(x, y, 3) for x, y in sources]
    variance = pooled_variance(of_sources, 3)
    mine = statistics(*own, 3)
    for source, raw in zip(of_sources, sources, strict=True):
        found = pairwise_shifts(mine, source, variance)
        expected = [[by_hand(own, c, raw, k, pooled_by_hand(sources, k)) for k in range(3)] for c in range(3)]
        assert found == pytest.approx(np.array(expected), rel=1e-6, abs=1e-6)
    nearest = nearest_shifts(mine, of_sources, variance)
    each = [pairwise_shifts(mine, source, variance) for source in of_sources]
    assert nearest.tolist() == np.minimum(*each).tolist()
    # The nearest source client differs from pair to pair.
    assert 0 < (each[0] < each[1]).sum() < 9


def test_two_samples_each_by_hand() -> None:
    # Means 1 and 4, variances 1 and 4 over n; V = 2 * 4 / 1 = 8: s = (9 - 1/1 - 4/1) / 8.
    mine = statistics(np.array([[0.0], [2.0]]), np.array([0, 0]), 1)
    theirs = statistics(np.array([[2.0], [6.0]]), np.array([0, 0]), 1)
    assert pooled_variance([theirs], 1).tolist() == [8.0]
    assert pairwise_shifts(mine, theirs, np.array([8.0])).tolist() == [[0.5]]


def test_a_client_s_shift_is_the_mean_over_its_samples_of_shared_classes() -> None:
    own = Statistics(np.array([10, 30, 7]), np.zeros((3, 1)), np.zeros(3))
    nearest = np.array([[1.0, 9.0], [9.0, 2.0], [5.0, 5.0]])
    assert client_shift(own, nearest, {0: 0, 1: 1}) == (10 * 1.0 + 30 * 2.0) / 40
    assert client_shift(own, nearest, {0: 1}) == 9.0
    # Its numbering is independent of the federation's.
    assert client_shift(own, nearest, {1: 0, 2: 1}) == (30 * 9.0 + 7 * 5.0) / 37


def test_without_a_class_in_common_or_enough_samples_the_shift_is_unknown() -> None:
    own = Statistics(np.array([10, 1]), np.zeros((2, 1)), np.ones(2))
    source = Statistics(np.array([1, 10]), np.zeros((2, 1)), np.ones(2))
    found = nearest_shifts(own, [source], pooled_variance([source], 2))
    # One sample on either side is not enough.
    assert np.isnan(found).tolist() == [[True, False], [True, True]]
    assert math.isnan(client_shift(own, found, {0: 0, 1: 1}))
    assert math.isnan(client_shift(own, found, {}))
    assert math.isnan(client_shift(own, nearest_shifts(own, [], np.full(2, np.nan)), {0: 0}))


def test_a_class_is_compared_with_the_source_clients_that_have_it() -> None:
    own = Statistics(np.array([5]), np.array([[1.0]]), np.array([0.0]))
    has = Statistics(np.array([5]), np.array([[3.0]]), np.array([2.0]))
    lacks = Statistics(np.array([0]), np.array([[0.0]]), np.array([0.0]))
    found = nearest_shifts(own, [lacks, has, lacks], np.array([2.5]))
    assert found.tolist() == [[(4 - 2.0 / 4) / 2.5]]


def test_a_class_without_variance_has_no_shift_rather_than_an_infinite_one() -> None:
    flat = Statistics(np.array([5]), np.zeros((1, 2)), np.zeros(1))
    elsewhere = Statistics(np.array([5]), np.ones((1, 2)), np.zeros(1))
    assert np.isnan(pairwise_shifts(flat, flat, pooled_variance([flat], 1))).all()
    assert np.isnan(pairwise_shifts(elsewhere, flat, pooled_variance([flat], 1))).all()
    assert own_shift(flat, flat) is None


@pytest.mark.parametrize(("moved", "count"), [(0.0, 5), (0.0, 40), (1.0, 5), (2.0, 12)])
def test_on_average_the_shift_is_the_squared_distance_in_units_of_the_variance(moved: float, count: int) -> None:
    """Sampling alone gives a mean of 0, even with few samples."""
    rng = np.random.default_rng(7)
    width, found = 6, []
    y = np.zeros(count, dtype=np.int64)
    step = moved / math.sqrt(width)
    for _ in range(600):
        own = statistics(rng.normal(size=(count, width)) + step, y, 1)
        source = statistics(rng.normal(size=(count, width)), y, 1)
        # The true variance, width, so that only the numerator is random.
        found.append(pairwise_shifts(own, source, np.array([float(width)]))[0, 0])
    error = np.std(found) / math.sqrt(len(found))
    assert abs(np.mean(found) - moved**2 / width) < 4 * error
    assert error < 0.03


def test_a_client_s_own_shift_is_that_of_its_held_out_samples() -> None:
    train, held_out = cloud(3, 90), cloud(4, 30)
    found = own_shift(statistics(*train, 3), statistics(*held_out, 3))
    values = [by_hand(held_out, c, train, c, pooled_by_hand([train], c)) for c in range(3)]
    counts = [int((held_out[1] == c).sum()) for c in range(3)]
    assert found == pytest.approx(np.average(values, weights=counts), rel=1e-6)


def test_a_client_without_samples_has_no_own_shift() -> None:
    train, none = statistics(*cloud(3, 90), 3), statistics(np.zeros((0, 4)), np.zeros(0, dtype=np.int64), 3)
    assert own_shift(train, none) is None
    assert own_shift(none, train) is None


def test_own_shifts_need_enough_held_out_samples() -> None:
    x, y = cloud(4, 200)
    train = statistics(*cloud(3, 90), 3)
    assert own_shift(train, statistics(x[:MIN_HELD_OUT], y[:MIN_HELD_OUT] * 0, 3)) is not None
    assert own_shift(train, statistics(x[: MIN_HELD_OUT - 1], y[: MIN_HELD_OUT - 1] * 0, 3)) is None


def test_every_source_client_is_compared_with_all_others() -> None:
    raw = [cloud(seed, 60) for seed in range(3)]
    raw[2] = (raw[2][0] + 1, raw[2][1])
    of_sources = [statistics(*own, 3) for own in raw]
    found = shifts_between_sources(of_sources, pooled_variance(of_sources, 3))
    for place, own in enumerate(raw):
        others = raw[:place] + raw[place + 1 :]
        values = [min(by_hand(own, c, other, c, pooled_by_hand(raw, c)) for other in others) for c in range(3)]
        counts = [int((own[1] == c).sum()) for c in range(3)]
        assert found[place] == pytest.approx(np.average(values, weights=counts), rel=1e-5)
    assert found[2] > 10 * abs(found[0])


def test_clients_without_a_class_in_common_are_not_compared() -> None:
    both = Statistics(np.array([5, 0]), np.zeros((2, 1)), np.ones(2))
    alone = Statistics(np.array([0, 5]), np.zeros((2, 1)), np.ones(2))
    of_sources = [both, alone, both]
    assert len(shifts_between_sources(of_sources, pooled_variance(of_sources, 2))) == 2
    assert shifts_between_sources([both], pooled_variance([both], 2)) == []


def test_mean_embeddings_are_over_all_samples_of_the_classes_that_any_client_has() -> None:
    raw = [cloud(0, 50), cloud(1, 90)]
    x, y = (np.concatenate(column) for column in zip(*raw, strict=True))
    found = mean_embeddings((statistics(*own, 5) for own in raw), 5, 4)
    assert found.dtype == torch.float32
    assert found.numpy() == pytest.approx(np.stack([x[y == c].mean(0) for c in range(3)]), abs=1e-5)
    assert mean_embeddings([], 5, 4).shape == (0, 4)


def test_the_nearest_known_class_of_declared_classes_with_enough_samples() -> None:
    own = Statistics(np.array([9, 9, 3, 9]), np.zeros((4, 1)), np.zeros(4))
    nearest = np.array([[0.5, 0.2, np.nan], [0.1, 0.2, 0.3], [0.1, 0.1, 0.1], [np.nan, np.nan, np.nan]])
    found = nearest_known(own, nearest, ["new", "b", "few", "lost"], ("a", "b", "c"), at_least=9)
    assert found == {"new": ("b", 0.2)}


@pytest.mark.parametrize(
    ("shifts", "largest"),
    [([], 0.0), ([0.3], 0.3), ([0.1, 0.2, 0.3], 0.3), ([0.1] * 5 + [1e9], 0.1), ([0.1] * 9 + [0.2, 1e9], 0.2)],
)
def test_no_single_source_client_of_six_or_more_determines_the_limit(shifts: list[float], largest: float) -> None:
    assert upper_quantile(shifts) == largest


# --- what is rejected ----------------------------------------------------------------------------------------


def sent(**changes: Any) -> dict[str, torch.Tensor]:
    return {"count": torch.tensor([3, 0]), "mean": torch.zeros(2, 4), "variance": torch.zeros(2), **changes}


def test_consistent_statistics_are_accepted() -> None:
    check_statistics(sent(), classes=2, width=4, samples=3)
    # The number of samples includes classes that are not sent.
    check_statistics(sent(), classes=2, width=4, samples=30)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"count": torch.tensor([3])}, r"'count' is torch.int64 \(1,\), expected torch.int64 \(2,\)"),
        ({"count": torch.tensor([3.0, 0.0])}, r"'count' is torch.float32 \(2,\), expected torch.int64"),
        ({"mean": torch.zeros(2, 5)}, r"'mean' is torch.float32 \(2, 5\), expected torch.float32 \(2, 4\)"),
        ({"mean": torch.zeros(2, 4, dtype=torch.float64)}, "'mean' is torch.float64"),
        ({"variance": torch.zeros(2, 1)}, r"'variance' is torch.float32 \(2, 1\), expected torch.float32 \(2,\)"),
        ({"variance": torch.tensor([-0.1, 0.0])}, "a class variance is less than 0"),
        ({"count": torch.tensor([-1, 2])}, "class counts do not fit 3 samples"),
        ({"count": torch.tensor([2, 2])}, "class counts do not fit 3 samples"),
    ],
)
def test_impossible_statistics_are_rejected(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadReply, match=words):
        check_statistics(sent(**changes), classes=2, width=4, samples=3)


@pytest.mark.parametrize("name", ["count", "mean", "variance"])
def test_missing_statistics_are_rejected(name: str) -> None:
    with pytest.raises(BadReply, match=name):
        check_statistics({key: value for key, value in sent().items() if key != name}, 2, 4, 3)
