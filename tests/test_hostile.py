"""A small part of the hostile trials in benchmarks/hostile, with fixed seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hostile import configs, payloads


@pytest.mark.parametrize("method", ["fedavg", "gains"])
def test_mutated_replies_are_rejected_or_harmless(method: str, tmp_path: Path) -> None:
    found = payloads.hunt_methods(tmp_path, [method], each=10, seed=1)
    assert found.examples == []
    assert found.facts["rejected"] > found.facts["accepted"] > 0
    assert found.trials == found.facts["rejected"] + found.facts["accepted"]


def test_mutated_configs_are_rejected_with_sentences_or_valid(tmp_path: Path) -> None:
    found = configs.hunt(tmp_path, 16, seed=3)
    assert found.examples == []
    assert found.facts["rejected by settings"] > 0
