from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from fedwild.data import DataSettings, PartitionSettings


@pytest.mark.parametrize("model", [DataSettings, PartitionSettings])
def test_every_setting_is_described(model: type[DataSettings] | type[PartitionSettings]) -> None:
    for row in model.describe():
        assert len(row["description"]) > 20, row["name"]


@pytest.mark.parametrize(
    "settings",
    [
        {"known": 0},
        {"known": []},
        {"known": "some"},
        {"known": True},
        {"known": ["a", "a"]},
        {"novel": -1},
        {"unknown": "all"},
        {"validation": 1.0},
        {"public": -0.1},
        {"public_from": "moon"},
        {"size": 0},
        {"channels": 2},
        {"std": 0.0},
        {"std": [1.0, -1.0]},
        {"mean": []},
        {"augment": ["spin"]},
        {"train_samples": 0},
        {"name": []},
        {"name": ["mnist", "mnist"]},
        {"name": ""},
        {"colour": 3},
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        DataSettings(**settings)


def test_numbers_in_lists_are_class_names() -> None:
    assert DataSettings(known=[1, "2"], known_by_client={"client-00": [1]}).known == ["1", "2"]


def test_partition_settings_keep_only_what_was_given() -> None:
    assert PartitionSettings(name="dirichlet", beta=0.3).params == {"beta": 0.3}
    assert PartitionSettings().params == {}
