"""The federated baselines with any objective, correction and score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedwild.training.corrections import CORRECTIONS
from fedwild.training.objectives import OBJECTIVES
from fedwild.runs.events import read_events
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset

BASELINES = ["afl", "fedbn", "fedheal", "fedproto", "qffl"]


def whole(folder: Path, method: str, settings: dict[str, Any]) -> bytes:
    """The model of a run in which no client failed."""
    data = tiny_dataset(classes=2)
    run_tiny(folder, method, data, split_by(data, 2, even_shares(data, 2, 3)), settings)
    events = read_events(folder / "events.jsonl")
    assert not [event for event in events if event["event"] == "client-failed"]
    return model_bytes(folder)


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("objective", OBJECTIVES.names())
def test_any_objective(method: str, objective: str, tmp_path: Path) -> None:
    score = "proser" if OBJECTIVES.get(objective).extra_outputs else "energy"
    model = whole(tmp_path / "run", method, {"objective": {"name": objective}, "score": {"name": score}})
    if objective != "ce":
        assert model != whole(tmp_path / "ce", method, {"score": {"name": "energy"}})


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("correction", [name for name in CORRECTIONS.names() if name in ("prox", "scaffold", "moon")])
def test_any_correction(method: str, correction: str, tmp_path: Path) -> None:
    rounds = {"method": {"rounds": 3}}
    corrected = whole(tmp_path / "run", method, {**rounds, "correction": {"name": correction}})
    plain = whole(tmp_path / "plain", method, rounds)
    # Without a global model SCAFFOLD has nothing to correct towards, and MOON nothing to tell apart.
    assert (corrected != plain) == (method != "fedproto" or correction == "prox")
