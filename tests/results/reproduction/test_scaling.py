"""A share of the paper's rounds or, if there is one round, of its epochs."""

from __future__ import annotations

from typing import Any

import pytest

from fedwild.results.reproduction.scaling import scaled
from fedwild.runs.config import resolve


def method_at(scale: float, **method: Any) -> dict[str, Any]:
    table: dict[str, Any] = scaled(resolve({"data": {"name": "mnist"}, "method": method}), scale).table()["method"]
    return table


def test_rounds_are_scaled_and_epochs_are_not() -> None:
    assert method_at(0.1, name="fedavg", rounds=60, epochs=5) | {"rounds": 6, "epochs": 5} == method_at(
        0.1, name="fedavg", rounds=60, epochs=5
    )


@pytest.mark.parametrize(
    ("scale", "rounds", "epochs"),
    [(1.0, 50, 5), (0.5, 25, 5), (0.02, 1, 5), (0.01, 1, 2), (0.004, 1, 1), (0.0001, 1, 1)],
)
def test_the_rest_of_the_reduction_applies_to_epochs(scale: float, rounds: int, epochs: int) -> None:
    method = method_at(scale, name="fedavg", rounds=50, epochs=5)
    assert (method["rounds"], method["epochs"]) == (rounds, epochs)


def test_one_shot_methods_have_fewer_epochs() -> None:
    assert method_at(0.1, name="fedov", epochs=200)["epochs"] == 20
    distilled = method_at(0.1, name="distilled-fedov", epochs=100, distil_epochs=50)
    assert (distilled["epochs"], distilled["distil_epochs"]) == (10, 5)


def test_all_numbers_of_rounds_are_scaled() -> None:
    gal = method_at(0.1, name="gal-paper", rounds=30, novel_rounds=20, epochs=10)
    assert (gal["rounds"], gal["novel_rounds"], gal["epochs"]) == (3, 2, 10)
    gains = method_at(0.1, name="gains-paper", rounds=20, adapt_rounds=40)
    assert (gains["rounds"], gains["adapt_rounds"]) == (2, 4)


def test_zero_rounds_stay_zero() -> None:
    assert method_at(0.1, name="gal-paper", rounds=30, novel_rounds=0)["novel_rounds"] == 0


@pytest.mark.parametrize(("scale", "rounds", "arrival"), [(1.0, 60, 20), (0.1, 6, 2), (0.01, 1, 0)])
def test_newcomers_arrive_after_the_same_share_of_rounds(scale: float, rounds: int, arrival: int) -> None:
    settings = {
        "data": {"name": "mnist", "newcomers": {"late": {"name": "mnist"}}},
        "method": {"name": "fedavg", "rounds": 60},
        "federation": {"arrivals": {"late": 20}},
    }
    table = scaled(resolve(settings), scale).table()
    assert table["method"]["rounds"] == rounds
    assert table["federation"]["arrivals"] == {"late": arrival}


def test_other_settings_do_not_change() -> None:
    config = resolve({"seed": 7, "data": {"name": "mnist"}, "method": {"name": "fedavg", "rounds": 60, "lr": 0.3}})
    before, after = config.table(), scaled(config, 0.1).table()
    del before["method"]["rounds"], after["method"]["rounds"]
    assert before == after


@pytest.mark.parametrize("scale", [0.05, 0.25, 0.37])
def test_rounding_does_not_change_epochs(scale: float) -> None:
    assert method_at(scale, name="gal-paper", rounds=30, epochs=10)["epochs"] == 10
