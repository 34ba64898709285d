"""The federated baselines with any objective, correction and score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedwild.runs.events import read_events
from fedwild.training.objectives import OBJECTIVES
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset

BASELINES = ["afl", "fedbn", "fedheal", "fedproto", "qffl"]


def model_after(folder: Path, method: str, settings: dict[str, Any]) -> bytes:
    """Return the final model of a run in which no client failed."""
    data = tiny_dataset(classes=2)
    run_tiny(folder, method, data, split_by(data, 2, even_shares(data, 2, 3)), settings)
    events = read_events(folder / "events.jsonl")
    assert not [event for event in events if event["event"] == "client-failed"]
    return model_bytes(folder)


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("objective", OBJECTIVES.names())
def test_any_objective(method: str, objective: str, tmp_path: Path) -> None:
    score = "proser" if OBJECTIVES.get(objective).extra_outputs else "energy"
    model = model_after(tmp_path / "run", method, {"objective": {"name": objective}, "score": {"name": score}})
    if objective != "ce":
        assert model != model_after(tmp_path / "ce", method, {"score": {"name": "energy"}})


@pytest.mark.parametrize("method", BASELINES)
@pytest.mark.parametrize("correction", ["prox", "scaffold", "moon"])
def test_any_correction(method: str, correction: str, tmp_path: Path) -> None:
    rounds = {"method": {"rounds": 3}}
    corrected = model_after(tmp_path / "run", method, {**rounds, "correction": {"name": correction}})
    plain = model_after(tmp_path / "plain", method, rounds)
    # Without a global model, SCAFFOLD and MOON have no effect.
    assert (corrected != plain) == (method != "fedproto" or correction == "prox")
