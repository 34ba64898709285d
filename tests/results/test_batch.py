"""Batches of runs, and their display."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedwild import api
from fedwild.core.errors import UserError
from fedwild.lifecycle import start as starting
from fedwild.results.batch import Planned, Progress, Watcher, run_batch
from fedwild.results.batch_display import BatchDisplay
from fedwild.runs.events import Listener
from tests.conftest import unfinish
from tests.tiny import fail_for_seed_0

TINY = {
    "data": {"name": "synthetic:8x8x1:4:80", "known": 3},
    "partition": {"name": "iid"},
    "federation": {"clients": 2},
    "method": {"name": "fedavg", "rounds": 2},
}


def planned(folder: Path, *seeds: int) -> list[Planned]:
    return [Planned(f"seed {s}", api.configure({**TINY, "seed": s}), folder / str(s)) for s in seeds]


class Recorder(Watcher):
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self, progress: Progress) -> None:
        self.calls.append(f"{progress.total} runs, {progress.kept} kept")

    def run(self, planned: Planned, progress: Progress) -> Listener:
        self.calls.append(f"begin {planned.label}")
        return lambda event: None

    def ran(self, planned: Planned, progress: Progress, error: UserError | None) -> None:
        self.calls.append(f"{planned.label}: {error or 'done'}")


def test_runs_are_made_in_order_and_kept_the_next_time(tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    assert len(run_batch(planned(tmp_path, 1, 0), first, workers=0).seconds) == 2
    assert first.calls == ["2 runs, 0 kept", "begin seed 1", "seed 1: done", "begin seed 0", "seed 0: done"]
    progress = run_batch(planned(tmp_path, 1, 0, 2), second, workers=0)
    assert second.calls == ["3 runs, 2 kept", "begin seed 2", "seed 2: done"]
    assert (progress.kept, progress.done) == (2, 3)


def test_a_failed_run_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_for_seed_0(monkeypatch)
    progress = run_batch(planned(tmp_path, 0, 1), Recorder(), workers=0)
    assert {label: str(error) for label, error in progress.failures.items()} == {"seed 0": "no replies"}
    assert (tmp_path / "1" / "result.json").exists()


def test_an_interrupted_run_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (item,) = planned(tmp_path, 0)
    run_batch([item], Recorder(), workers=0)
    before = (item.folder / "model.safetensors").read_bytes()
    unfinish(item.folder)
    monkeypatch.setattr(starting, "start", pytest.fail)
    run_batch([item], Recorder(), workers=0)
    assert (item.folder / "model.safetensors").read_bytes() == before


def test_the_time_left_is_the_mean_duration_times_the_remaining_runs() -> None:
    progress = Progress(total=5, kept=1)
    assert progress.seconds_left() is None
    progress.seconds += [10.0, 30.0]
    assert progress.seconds_left() == 40.0
    assert progress.seconds_left(running_for=5) == 35.0
    assert progress.seconds_left(running_for=500) == 20.0


def lines_of(folder: Path, terminal: bool, quiet: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, color_system=None)
    with BatchDisplay(console, quiet) as display:
        run_batch(planned(folder, 0, 1), display, workers=0)
    return stream.getvalue()


def test_the_start_and_the_end_of_each_run_are_plain_lines(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, terminal=False).splitlines()
    assert lines[0] == "2 runs"
    assert lines[1] == "run 1/2: seed 0"
    assert lines[2].startswith("  seed 0: closed accuracy ")
    assert "left" in lines[2]
    assert lines[3] == "run 2/2: seed 1"
    assert len(lines) == 5


def test_a_terminal_has_one_line_with_the_round(tmp_path: Path) -> None:
    text = lines_of(tmp_path, terminal=True)
    assert "run 2/2: seed 1, round 2/2, about" in text


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    assert lines_of(tmp_path, terminal=False, quiet=True) == ""


def test_an_unexpected_error_does_not_stop_the_other_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = starting.start

    def failing(config: Any, *rest: Any) -> Any:
        done = start(config, *rest)
        if config.seed == 0:
            raise ZeroDivisionError("an error in a method")
        return done

    monkeypatch.setattr(starting, "start", failing)
    progress = run_batch(planned(tmp_path, 0, 1), Recorder(), workers=0)
    advice = f"try `fedwild resume {tmp_path / '0'}`"
    assert str(progress.failures["seed 0"]) == f"ZeroDivisionError: an error in a method ({advice})"
    assert (tmp_path / "1" / "result.json").exists()
