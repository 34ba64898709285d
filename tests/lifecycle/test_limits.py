"""Limits on replies: how far a client may move what the server has."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
import torch

from fedwild.contract import Payload, Server, Step, Task
from fedwild.core.classes import ClassRegistry
from fedwild.core.rng import Rng
from fedwild.lifecycle.limits import Update, find_excessive, measure_updates, median_without, update_limit


def test_updates_are_measured_against_what_the_server_has() -> None:
    server = Server(Task((4,), "mlp"), ClassRegistry(), Step("train", 0, 0), Rng(0))
    server.state.put("model", {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3), "grown": torch.ones(2)})
    sent = {"w": torch.tensor([4.0, -2.0]), "n": torch.tensor(9), "grown": torch.tensor([1.0, 2.0, 2.0])}
    found = measure_updates(server, Payload.of(model=sent, means={"m": torch.tensor([6.0, 8.0])}))
    # A tensor of another shape counts in full.
    assert found["model"].norm == pytest.approx(np.sqrt(3**2 + 4**2 + 1 + 4 + 4))
    assert found["model"].reference == pytest.approx(np.sqrt(5))
    assert found["means"] == Update(10.0, 0.0)


def test_variances_count_by_their_square_roots() -> None:
    server = Server(Task((4,), "mlp"), ClassRegistry(), Step("train", 0, 0), Rng(0))
    server.state.put("model", {"norm.running_var": torch.tensor([4.0, 9.0])})
    found = measure_updates(server, Payload.of(model={"norm.running_var": torch.tensor([25.0, 49.0])}))
    assert found["model"].norm == pytest.approx(5.0)
    assert found["model"].reference == pytest.approx(np.sqrt(13))


def test_large_values_do_not_overflow() -> None:
    server = Server(Task((4,), "mlp"), ClassRegistry(), Step("train", 0, 0), Rng(0))
    found = measure_updates(server, Payload.of(model={"w": torch.full((4,), 1e38)}))
    assert found["model"].norm == pytest.approx(2e38)


@pytest.mark.parametrize(
    ("others", "reference", "limit"),
    [
        ([3.0, 5.0, 400.0], 2.0, 50.0),
        ([3.0, 5.0, 400.0], 20.0, 200.0),
        ([5.0], 2.0, 50.0),
        ([], 2.0, 20.0),
        ([], 0.5, 10.0),
        ([1e-6, 1e-6], 0.5, 10.0),
        # Of an even number, the lower one: one of two others may be malicious.
        ([5.0, math.inf], 1.0, 50.0),
        # What the server does not have: the square of the setting.
        ([5.0, 6.0], 0.0, 500.0),
        ([], 0.0, 100.0),
    ],
)
@pytest.mark.parametrize("own", [0.0, 0.1, 4.0, 1e9, math.inf])
def test_the_limit_follows_the_other_clients_and_the_server(
    others: list[float], reference: float, limit: float, own: float
) -> None:
    rising = sorted([*others, *([own] if own else [])])
    assert update_limit(Update(own, reference), rising, 10.0) == pytest.approx(limit)


@pytest.mark.parametrize("seed", range(5))
def test_the_median_without_one_is_that_of_the_others(seed: int) -> None:
    norms = Rng(seed).numpy("norms").integers(1, 5, size=1 + seed).astype(float).tolist()
    for i, own in enumerate(norms):
        others = norms[:i] + norms[i + 1 :]
        assert median_without(sorted(norms), own) == (statistics.median_low(others) if others else 0.0)


def test_the_reason_gives_the_group_the_norm_and_the_limit() -> None:
    updates = {name: {"model": Update(2.0, 1.0)} for name in "abc"}
    updates["d"] = {"model": Update(2.0, 1.0), "means": Update(math.inf, 0.0)}
    assert find_excessive(updates, 10.0) == {
        "d": "the norm of its update of 'means' is inf, the limit is 100 (federation.max_update = 10)"
    }


def test_a_very_large_setting_means_no_limit() -> None:
    assert update_limit(Update(5.0, 0.0), [1.0, 5.0], 1e300) == math.inf


def test_clients_without_samples_are_not_typical() -> None:
    updates = {str(i): {"model": Update(0.0, 1.0)} for i in range(10)}
    updates["large"] = {"model": Update(9.0, 1.0)}
    assert find_excessive(updates, 10.0) == {}
