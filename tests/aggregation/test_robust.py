"""Robust aggregations against independent computations in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from torch import Tensor

from fedwild.aggregation import AGGREGATIONS, equally, stack
from fedwild.aggregation.base import clip_updates
from fedwild.contract import Payload, Replies, Reply
from fedwild.core.rng import Rng
from tests.tiny import own

ROBUST = [name for name in own(AGGREGATIONS) if name != "mean"]


def replies(values: Sequence[np.ndarray], counts: Sequence[int] | None = None) -> Replies:
    """One reply per row, its numbers divided over two tensors, with a counter."""

    def reader(row: np.ndarray, count: int, place: int) -> Callable[[], Payload]:
        weights = torch.from_numpy(row.astype(np.float32))
        model = {"a": weights[:3].reshape(3, 1), "b": weights[3:], "steps": torch.tensor(place)}
        return lambda: Payload.of({"samples": count}, model=model)

    names = [f"client-{i:02d}" for i in range(len(values))]
    counts = counts or [1] * len(values)
    return Replies({name: reader(row, counts[i], i) for i, (name, row) in enumerate(zip(names, values, strict=True))})


def flat(tensors: dict[str, Tensor] | None) -> np.ndarray:
    assert tensors is not None
    return torch.cat([tensors["a"].flatten(), tensors["b"]]).double().numpy()


def rows(count: int, seed: int = 0) -> np.ndarray:
    return Rng(seed).numpy("rows").normal(size=(count, 8)).astype(np.float32).astype(np.float64)


def merged(name: str, values: np.ndarray, **settings: Any) -> np.ndarray:
    return flat(AGGREGATIONS.make(name, settings).mean(replies(list(values)), "model"))


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_the_median_is_that_of_numpy(count: int) -> None:
    assert merged("median", rows(count)) == pytest.approx(np.median(rows(count), axis=0), rel=1e-6)


@pytest.mark.parametrize("trim", [0.0, 0.1, 0.3, 0.45])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_the_trimmed_mean_is_that_of_scipy(count: int, trim: float) -> None:
    expected = scipy.stats.trim_mean(rows(count), trim, axis=0)
    assert merged("trimmed-mean", rows(count), trim=trim) == pytest.approx(expected, rel=1e-6)


def brute_force_scores(values: np.ndarray, attackers: int) -> list[float]:
    scores = []
    for i, row in enumerate(values):
        distances = sorted(float(((row - other) ** 2).sum()) for j, other in enumerate(values) if j != i)
        scores.append(sum(distances[: max(1, len(values) - attackers - 2)]))
    return scores


@pytest.mark.parametrize(("count", "attackers"), [(1, 0.3), (2, 0.3), (3, 0.3), (7, 0.2), (10, 0.3), (10, 0.0)])
def test_krum_is_the_model_with_the_smallest_brute_force_score(count: int, attackers: float) -> None:
    values = rows(count)
    scores = brute_force_scores(values, int(attackers * count))
    best = values[int(np.argmin(scores))]
    assert merged("krum", values, attackers=attackers) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("keep", [None, 1, 4])
def test_multi_krum_is_the_mean_of_the_models_with_the_smallest_scores(keep: int | None) -> None:
    values = rows(10)
    order = np.argsort(brute_force_scores(values, 3), kind="stable")[: keep or 7]
    assert merged("multi-krum", values, keep=keep) == pytest.approx(values[order].mean(0), rel=1e-6)


@pytest.mark.parametrize("counts", [[1] * 6, [5, 1, 1, 2, 2, 3]])
def test_the_geometric_median_minimises_the_sum_of_distances(counts: list[int]) -> None:
    values = rows(6)

    def cost(v: np.ndarray) -> float:
        return float((np.array(counts) * np.linalg.norm(values - v, axis=1)).sum())

    best = scipy.optimize.minimize(cost, values.mean(0), tol=1e-14)
    found = flat(AGGREGATIONS.make("geometric-median").mean(replies(list(values), counts), "model"))
    assert found == pytest.approx(best.x, abs=1e-4)
    assert cost(found) <= best.fun + 1e-6


def test_the_geometric_median_of_a_majority_of_equal_points_is_that_point() -> None:
    values = np.vstack([np.tile(rows(1), (4, 1)), rows(3, seed=1)])
    assert merged("geometric-median", values) == pytest.approx(values[0], abs=1e-5)


@pytest.mark.parametrize("radius", [0.5, 2.0, 100.0, None])
@pytest.mark.parametrize("steps", [1, 4])
def test_centred_clipping_follows_its_formula(radius: float | None, steps: int) -> None:
    values, centre = rows(5), rows(1, seed=9)[0]
    reference = next(iter(replies([centre]))).payload.group("model")
    rule = AGGREGATIONS.make("centered-clipping", {"radius": radius, "steps": steps})
    found = flat(rule.mean(replies(list(values)), "model", equally, reference))
    v = centre.copy()
    for _ in range(steps):
        lengths = np.linalg.norm(values - v, axis=1)
        tau = np.median(lengths) if radius is None else radius
        v = v + ((values - v) * np.minimum(1, tau / lengths)[:, None]).mean(0)
    assert found == pytest.approx(v, rel=1e-5, abs=1e-6)


def test_centred_clipping_without_limit_is_the_mean() -> None:
    values = rows(5)
    assert merged("centered-clipping", values, radius=100.0, steps=1) == pytest.approx(values.mean(0), rel=1e-5)


def test_clipping_shortens_long_updates_only() -> None:
    values, before = rows(4) * np.array([[0.01], [1.0], [10.0], [1e6]]), rows(1, seed=9)[0]
    reference = next(iter(replies([before]))).payload.group("model")
    found = [flat(r.payload.group("model")) for r in clip_updates(replies(list(values)), "model", reference, 3.0)]
    for row, original in zip(found, values, strict=True):
        change = original - before
        expected = before + change * min(1.0, 3.0 / np.linalg.norm(change))
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_variances_count_by_their_square_roots_in_distances_and_clipping() -> None:
    def reply(variance: float) -> Reply:
        return Reply("a", Payload.of({"samples": 1}, model={"n.running_var": torch.tensor([variance])}))

    with stack.Stack([reply(4.0), reply(25.0)], "model", equally) as both:
        assert both.squared_distances() == pytest.approx(np.array([[0.0, 9.0], [9.0, 0.0]]))
    (clipped,) = clip_updates([reply(25.0)], "model", {"n.running_var": torch.tensor([4.0])}, 1.5)
    assert float(clipped.payload.group("model")["n.running_var"]) == pytest.approx(4 + 21 / 2)


@pytest.mark.parametrize("name", ROBUST)
def test_integers_are_those_of_the_first_client_with_samples(name: str) -> None:
    result = AGGREGATIONS.make(name).mean(replies(list(rows(4)), [0, 3, 1, 2]), "model")
    assert result is not None
    assert result["steps"].tolist() == 1
    assert result["a"].shape == (3, 1)
    assert result["a"].dtype == torch.float32


@pytest.mark.parametrize("name", ROBUST)
def test_clients_without_samples_do_not_count(name: str) -> None:
    values = rows(5)
    values[2] = 1e6
    with_empty = flat(AGGREGATIONS.make(name).mean(replies(list(values), [1, 1, 0, 1, 1]), "model"))
    without = merged(name, values[[0, 1, 3, 4]])
    assert with_empty == pytest.approx(without)
    assert AGGREGATIONS.make(name).mean(replies(list(values), [0] * 5), "model") is None


@pytest.mark.parametrize("name", ROBUST)
def test_small_blocks_give_the_same_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = merged(name, rows(5))
    monkeypatch.setattr(stack, "BLOCK_BYTES", 100)
    assert merged(name, rows(5)) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("name", [name for name in ROBUST if name != "krum"])
def test_three_of_ten_attackers_move_the_result_less_than_the_clients_differ(name: str) -> None:
    honest = rows(7)
    for attack in (np.full((3, 8), 50.0), -10 * np.tile(honest.mean(0), (3, 1)), rows(3, seed=5) * 30):
        moved = np.linalg.norm(merged(name, np.vstack([honest, attack])) - honest.mean(0))
        assert moved < np.linalg.norm(honest - honest.mean(0), axis=1).max()


def test_krum_does_not_choose_an_attacker() -> None:
    honest = rows(7)
    for attack in (np.full((3, 8), 50.0), rows(3, seed=5) * 30):
        chosen = merged("krum", np.vstack([honest, attack]))
        assert np.abs(honest - chosen).max(axis=1).min() < 1e-6


@pytest.mark.parametrize("name", ["median", "trimmed-mean"])
def test_the_order_of_clients_does_not_matter(name: str) -> None:
    values = rows(3)
    results = {tuple(merged(name, values[list(order)])) for order in permutations(range(3))}
    # A mean of sorted numbers has the same bits in any order of the clients.
    assert len(results) == 1


def test_replies_with_other_tensors_are_rejected() -> None:
    first, second = (Reply(name, Payload.of({"samples": 1}, model={name: torch.ones(1)})) for name in "ab")
    with pytest.raises(ValueError, match="the reply of b has other tensors"):
        AGGREGATIONS.make("median").mean([first, second], "model")


def test_float64_and_half_precision_keep_their_types() -> None:
    model = {"d": torch.tensor([1 / 3], dtype=torch.float64), "h": torch.tensor([0.5], dtype=torch.float16)}
    result = AGGREGATIONS.make("median").mean([Reply("a", Payload.of({"samples": 1}, model=model))], "model")
    assert result is not None
    assert torch.equal(result["d"], model["d"])
    assert result["h"].dtype == torch.float16
