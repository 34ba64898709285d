"""The data of GAL's tests."""

from __future__ import annotations

import pytest

from fedwild.data import Dataset
from tests.methods.gal.federation import KNOWN, NOVEL
from tests.tiny import tiny_dataset


@pytest.fixture(scope="session")
def data() -> Dataset:
    """Three known classes, two novel ones, and one that stays unknown."""
    return tiny_dataset(classes=KNOWN + NOVEL, per_class=24)
