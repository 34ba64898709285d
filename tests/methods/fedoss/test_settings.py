"""The settings of FedOSS: groups, and values that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from fedwild.core.errors import UserError
from fedwild.core.settings import validate
from fedwild.methods import METHODS
from fedwild.methods.fedoss.settings import FedOSSParams, GaussianSettings, TrainingSettings
from fedwild.training.loop import LocalTraining


def test_groups_are_listed_in_the_order_of_a_run() -> None:
    names = list(FedOSSParams.model_fields)
    assert len(names) == 42
    assert names[: len(LocalTraining.model_fields)] == list(LocalTraining.model_fields)
    places = [names.index(key) for key in ("rounds", "finetune_rounds", "cut", "boundary", "steps", "foss", "decision")]
    assert places == sorted(places)
    own = set(FedOSSParams.model_fields) - set(TrainingSettings.model_fields)
    assert set(GaussianSettings.model_fields) < own


@pytest.mark.parametrize("name", ["fedoss", "fedoss-paper"])
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"low": 0.9, "high": 0.5}, "low = 0.9 must be below high = 0.5"),
        ({"low": 0.5, "high": 0.5}, "low = 0.5 must be below high = 0.5"),
        ({"select": "density"}, "select = 'density' needs log_density"),
        ({"keep": 9, "draws": 3}, "keep = 9 must not exceed draws = 3"),
        ({"draws": 3}, "keep = 6 must not exceed draws = 3"),
        ({"rounds": 0, "finetune_rounds": 0}, "rounds = 0 and finetune_rounds = 0"),
    ],
)
def test_contradictory_settings_are_rejected(name: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=f"^method: {words}"):
        validate(METHODS.get(name).Params, values, "method")


def test_settings_that_complete_each_other_are_accepted() -> None:
    assert validate(FedOSSParams, {"select": "density", "log_density": -1000.0}, "method").log_density == -1000.0
    assert validate(FedOSSParams, {"draws": 3, "keep": 3}, "method").keep == 3
