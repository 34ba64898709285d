"""One client sends huge or false numbers: whatever the method, the run ends with a usable model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from fedwild.contract.engine import Answer, Engine, Job, Presence
from fedwild.core.payload import Payload
from fedwild.engines.executor import Executor
from fedwild.engines.local import LocalEngine
from fedwild.lifecycle.rounds import Federation
from fedwild.runs.events import read_events
from fedwild.runs.experiment import fingerprint
from fedwild.runs.folder import RunFolder
from tests.contract.test_every_method import BASES, small
from tests.tiny import tiny_experiment

Change = Callable[[Payload], None]


class Changed:
    """An engine whose client `who` sends changed replies in the first round of every phase."""

    def __init__(self, inner: Engine, folder: Path, who: str, change: Change) -> None:
        self._inner, self._folder, self._who, self._change = inner, folder, who, change

    def present(self) -> Mapping[str, Presence] | None:
        return self._inner.present()

    def close(self) -> None:
        self._inner.close()

    def run(self, jobs: Iterable[Job], started: Callable[[Job], None] = lambda job: None) -> Iterator[Answer]:
        for answer in self._inner.run(jobs, started):
            job = answer.job
            if job.kind == "local" and job.client == self._who and job.step.round == 0 and answer.error is None:
                reply, path = answer.read(), self._folder / f"up-changed-{job.step.index}"
                self._change(reply)
                answer = dataclasses.replace(answer, path=str(path), offset=0, size=reply.write(path))
            yield answer


def run_changed(folder: Path, method: str, who: str, change: Change) -> dict[str, Any]:
    """Run a method whose client `who` sends changed replies, and return the result."""
    experiment = tiny_experiment(method, *small(method), {"engine": {"workers": 0}})
    run = RunFolder.create(
        folder, "tiny", experiment.config.to_toml(), experiment.split, {"data": fingerprint(experiment.dataset)}
    )

    def connect(executor: Executor) -> Engine:
        return Changed(LocalEngine(executor, 0), executor.spool, who, change)

    return Federation(experiment, run, connect=connect).run()


def fill_with(value: float) -> Change:
    def change(reply: Payload) -> None:
        for name, tensor in reply.tensors.items():
            if tensor.is_floating_point():
                reply.tensors[name] = torch.full_like(tensor, value)

    return change


def assert_usable(folder: Path, result: dict[str, Any]) -> None:
    assert 0 <= result["metrics"]["closed_accuracy"] <= 1
    state = Payload.read(folder / "model.safetensors")
    assert all(bool(torch.isfinite(t).all()) for t in state.tensors.values() if t.is_floating_point())


@pytest.mark.parametrize("value", [1e30, -1e12])
@pytest.mark.parametrize("method", BASES)
def test_huge_values_once_in_every_phase_cost_only_the_reply(method: str, value: float, tmp_path: Path) -> None:
    result = run_changed(tmp_path / "run", method, "client-01", fill_with(value))
    assert_usable(tmp_path / "run", result)
    events = read_events(tmp_path / "run" / "events.jsonl")
    failed = [event for event in events if event["event"] == "client-failed"]
    assert {event["client"] for event in failed} == {"client-01"}
    assert failed[0]["index"] == 0


def claim_everything(reply: Payload) -> None:
    """Zero weights with the largest number of samples that a message can hold."""
    fill_with(0.0)(reply)
    reply.info["samples"] = 2**53


@pytest.mark.parametrize("method", BASES)
def test_more_samples_than_the_client_has_are_rejected(method: str, tmp_path: Path) -> None:
    result = run_changed(tmp_path / "run", method, "client-01", claim_everything)
    assert_usable(tmp_path / "run", result)
    events = read_events(tmp_path / "run" / "events.jsonl")
    failed = [event for event in events if event["event"] == "client-failed"]
    assert {event["client"] for event in failed} == {"client-01"}
    accepted = [event for event in events if event["event"] == "client" and event["round"] == 0]
    assert accepted
    assert "client-01" not in {event["client"] for event in accepted}
