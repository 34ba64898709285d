"""Several runs one after the other, and what is shown of them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedwild import api
from fedwild.core.errors import UserError
from fedwild.display.progress import duration
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


class Seen(Watcher):
    """Remembers what it sees."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self, progress: Progress) -> None:
        self.told.append(f"{progress.total} runs, {progress.kept} kept")

    def run(self, planned: Planned, progress: Progress) -> Listener:
        self.told.append(f"begin {planned.label}")
        return lambda event: None

    def ran(self, planned: Planned, progress: Progress, error: UserError | None) -> None:
        self.told.append(f"{planned.label}: {error or 'done'}")


def test_runs_are_done_in_order_and_kept_the_next_time(tmp_path: Path) -> None:
    first, second = Seen(), Seen()
    assert len(run_batch(planned(tmp_path, 1, 0), first, workers=0).seconds) == 2
    assert first.told == ["2 runs, 0 kept", "begin seed 1", "seed 1: done", "begin seed 0", "seed 0: done"]
    progress = run_batch(planned(tmp_path, 1, 0, 2), second, workers=0)
    assert second.told == ["3 runs, 2 kept", "begin seed 2", "seed 2: done"]
    assert (progress.kept, progress.done) == (2, 3)


def test_a_failure_stops_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_for_seed_0(monkeypatch)
    progress = run_batch(planned(tmp_path, 0, 1), Seen(), workers=0)
    assert {label: str(error) for label, error in progress.failures.items()} == {"seed 0": "nobody answered"}
    assert (tmp_path / "1" / "result.json").exists()


def test_a_run_that_was_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (item,) = planned(tmp_path, 0)
    run_batch([item], Seen(), workers=0)
    before = (item.folder / "model.safetensors").read_bytes()
    unfinish(item.folder)
    monkeypatch.setattr(starting, "start", pytest.fail)
    run_batch([item], Seen(), workers=0)
    assert (item.folder / "model.safetensors").read_bytes() == before


def test_time_left_is_the_mean_of_what_was_done_for_each_run_to_come() -> None:
    progress = Progress(total=5, kept=1)
    assert progress.seconds_left() is None
    progress.seconds += [10.0, 30.0]
    assert progress.seconds_left() == 40.0
    assert progress.seconds_left(running_for=5) == 35.0
    assert progress.seconds_left(running_for=500) == 20.0


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0.4 s"), (99.4, "99.4 s"), (100, "2 min"), (3600, "60 min"), (7260, "2 h 1 min")]
)
def test_durations_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def lines_of(folder: Path, terminal: bool, quiet: bool = False) -> str:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120, color_system=None)
    with BatchDisplay(console, quiet) as display:
        run_batch(planned(folder, 0, 1), display, workers=0)
    return stream.getvalue()


def test_each_run_is_a_plain_line_at_its_begin_and_its_end(tmp_path: Path) -> None:
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


def test_quiet_says_nothing(tmp_path: Path) -> None:
    assert lines_of(tmp_path, terminal=False, quiet=True) == ""


def test_even_an_error_that_nobody_foresaw_stops_no_other_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = starting.start

    def failing(config: Any, *rest: Any) -> Any:
        done = start(config, *rest)
        if config.seed == 0:
            raise ZeroDivisionError("a method's own mistake")
        return done

    monkeypatch.setattr(starting, "start", failing)
    progress = run_batch(planned(tmp_path, 0, 1), Seen(), workers=0)
    resume = f"`fedwild resume {tmp_path / '0'}` shows all of it"
    assert str(progress.failures["seed 0"]) == f"ZeroDivisionError: a method's own mistake ({resume})"
    assert (tmp_path / "1" / "result.json").exists()
