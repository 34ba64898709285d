"""Missing data is replaced, and runs are shortened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwild.results.papers import tables
from fedwild.results.reproduction.fitting import scaled, scaled_round, with_generated, with_stand_in
from fedwild.runs.config import resolve


def on_digits(**settings: Any) -> dict[str, Any]:
    changed, words = with_stand_in(settings)
    assert words is not None
    assert changed["data"]["name"] == "digits"
    return changed


def test_settings_with_available_data_do_not_change() -> None:
    settings = {"data": {"name": "digits", "known": 4}, "model": {"name": "mlp"}}
    assert with_stand_in(settings) == (settings, None)


def test_the_text_names_the_missing_data() -> None:
    assert with_stand_in({"data": {"name": "mnist"}})[1] == "digits for mnist"


@pytest.mark.parametrize(
    ("name", "known", "novel", "digits_known", "digits_novel"),
    [("cifar-100", 80, 20, 8, 2), ("mnist", 6, 4, 6, 4), ("tiny-imagenet", 180, 20, 9, 1), ("cifar-100", 1, 0, 1, 0)],
)
def test_known_and_novel_classes_keep_their_shares(
    name: str, known: int, novel: int, digits_known: int, digits_novel: int
) -> None:
    data = on_digits(data={"name": name, "known": known, "novel": novel})["data"]
    assert (data["known"], data["novel"]) == (digits_known, digits_novel)


def test_names_of_digits_are_kept_and_other_names_become_a_number() -> None:
    assert on_digits(data={"name": "mnist", "known": ["1", "7"]})["data"]["known"] == ["1", "7"]
    assert on_digits(data={"name": "cifar-10", "known": ["cat", "dog"]})["data"]["known"] == 2


def test_if_all_classes_are_known_all_digits_are_known() -> None:
    assert on_digits(data={"name": "mnist"})["data"]["known"] == "all"


def test_the_network_and_image_size_of_the_missing_data_are_removed() -> None:
    changed = on_digits(data={"name": "svhn", "size": 28, "channels": 3}, model={"name": "wrn-28-10"})
    assert "model" not in changed
    assert changed["data"].keys() == {"name", "known"}


def test_estimators_get_the_number_of_digits() -> None:
    changed = on_digits(
        data={"name": "cifar-100", "known": 80, "novel": 20}, estimator={"name": "given", "classes": 20}
    )
    assert changed["estimator"] == {"name": "given", "classes": 2}


def test_of_several_domains_the_available_ones_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path))
    x, y = np.zeros((20, 16, 16), np.uint8), np.arange(20) % 10
    for name in ("usps", "mnist"):
        np.savez(tmp_path / f"{name}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    settings = {"data": {"name": ["mnist", "svhn", "usps"], "size": 28}, "partition": {"name": "domain"}}
    changed, words = with_stand_in(settings)
    assert changed == {**settings, "data": {"name": ["mnist", "usps"], "size": 28}}
    assert words == "without svhn"


def test_generated_data_replaces_only_missing_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path))
    newcomers = {"late": {"name": "synth-digits", "resize": True}}
    settings = {"data": {"name": ["mnist", "synth-digits"], "size": 28, "newcomers": newcomers}}
    drawn = {"late": {"name": "rendered-digits", "resize": True}}
    expected = {"data": {"name": ["mnist", "rendered-digits"], "size": 28, "newcomers": drawn}}
    assert with_generated(settings) == (expected, {"synth-digits": "rendered-digits"})
    assert with_generated({"data": {"name": "synth-digits"}})[0] == {"data": {"name": "rendered-digits"}}
    (tmp_path / "synth-digits.npz").touch()
    assert with_generated(settings) == (settings, {})


def test_a_domain_that_can_be_generated_is_kept_beside_available_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path))
    settings = {"data": {"name": ["mnist", "svhn", "synth-digits"]}}
    assert on_digits(**settings)["federation"]["clients"] == 3
    (tmp_path / "mnist.npz").touch()
    changed, words = with_stand_in(settings)
    assert (changed["data"]["name"], words) == (["mnist", "synth-digits"], "without svhn")


def test_without_any_domain_there_is_a_client_per_domain() -> None:
    changed = on_digits(data={"name": ["mnist", "svhn", "usps"]}, partition={"name": "domain"})
    assert changed["partition"] == {"name": "iid"}
    assert changed["federation"]["clients"] == 3


def test_newcomers_get_digits_as_well() -> None:
    newcomers = {"late": {"name": "mnist", "classes": ["1", "5"]}, "later": {"name": "usps", "resize": True}}
    data = on_digits(data={"name": "mnist", "known": ["0", "2"], "newcomers": newcomers})["data"]
    assert data["newcomers"] == {"late": {"name": "digits", "classes": ["1", "5"]}, "later": {"name": "digits"}}


def test_every_cell_that_lacks_only_data_gets_valid_settings() -> None:
    seen = 0
    for table in tables():
        for cell in table.cells:
            if cell.settings is not None:
                config = resolve(with_stand_in(cell.settings)[0])
                assert config.data.name == "digits"
                seen += 1
    assert seen > 1000


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


def test_a_shortened_run_is_evaluated_after_each_round_if_after_some() -> None:
    for every, expected in ((0, 0), (1, 1), (25, 1)):
        settings = {"data": {"name": "mnist"}, "method": {"name": "fedavg"}, "evaluation": {"every": every}}
        assert scaled(resolve(settings), 0.5).evaluation.every == expected
        assert scaled(resolve(settings), 1).evaluation.every == every
    assert [scaled_round(number, 0.1) for number in (1, 25, 200)] == [1, 2, 20]


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
