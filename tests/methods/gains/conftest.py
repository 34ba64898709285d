"""Runs that several tests of Gains look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedwild.data import Dataset
from tests.methods.gains.federation import rows_of, run, split_of
from tests.tiny import tiny_dataset


@pytest.fixture(scope="session")
def data() -> Dataset:
    """Six classes of 64 samples; class-5 is dark on bright."""
    data = tiny_dataset(classes=6, per_class=64, unknown=0)
    inverted = [255 - part[y == 5] for part, y in ((data.x_train, data.y_train), (data.x_test, data.y_test))]
    data.x_train[data.y_train == 5], data.x_test[data.y_test == 5] = inverted
    return data


@pytest.fixture(scope="session")
def alone(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same federation without a newcomer."""
    folder = tmp_path_factory.mktemp("gains") / "alone"
    run(folder, data, split_of(data), stages=0)
    return folder


@pytest.fixture(scope="session")
def grown(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The federation after ann brought class-3 and class-4."""
    folder = tmp_path_factory.mktemp("gains") / "grown"
    run(folder, data, split_of(data, ann=rows_of(data, 3, 4)))
    return folder


@pytest.fixture(scope="session")
def in_turn(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ann brings class-3; then ben brings class-3 as well, and class-4."""
    folder = tmp_path_factory.mktemp("gains") / "in-turn"
    threes = rows_of(data, 3)
    split = split_of(data, ann=threes[:32], ben=[*threes[32:], *rows_of(data, 4)])
    run(folder, data, split, stages=2)
    return folder
