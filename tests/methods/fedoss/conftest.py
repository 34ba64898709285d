from __future__ import annotations

import pytest

from fedwild.data import Dataset
from tests.tiny import tiny_dataset


@pytest.fixture
def data() -> Dataset:
    return tiny_dataset(classes=3, per_class=24)
