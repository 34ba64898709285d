"""Replacement of missing data (no data set is available in tests)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwild.results.papers import tables
from fedwild.results.reproduction.stand_in import with_stand_in
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
