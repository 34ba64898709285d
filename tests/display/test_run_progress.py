"""The progress of a run, by a clock that the test controls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedwild.display.run_progress import RunProgress
from tests.tiny import even_shares, run_tiny, split_by, tiny_dataset


class ManualClock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def progress(clock: ManualClock) -> RunProgress:
    return RunProgress(clock)


def round_of(
    progress: RunProgress, clock: ManualClock, index: int, phase: str, clients: int, each: float, rest: float
) -> None:
    progress({"event": "round-start", "phase": phase, "index": index, "clients": clients})
    for number in range(clients):
        progress({"event": "client-start", "client": f"c{number}", "index": index})
        clock.time += each
        progress({"event": "client", "client": f"c{number}", "index": index})
    clock.time += rest
    progress({"event": "round", "phase": phase, "index": index})


def test_progress_has_the_activity_and_the_rounds_done(progress: RunProgress, clock: ManualClock) -> None:
    assert progress.text == "preparing"
    progress({"event": "start", "next_index": 0, "rounds": 4, "phases": [["train", 3], ["distil", 1]]})
    assert (progress.done, progress.rounds, progress.seconds_left()) == (0, 4, None)
    progress({"event": "round-start", "phase": "train", "index": 0, "clients": 4})
    progress({"event": "client-start", "client": "c0", "index": 0})
    assert progress.text == "round 1/4 train 0/4: c0 trains"
    clock.time += 2
    progress({"event": "client", "client": "c0", "index": 0})
    assert progress.text == "round 1/4 train 1/4: c0 is done"
    assert progress.done == 0.25
    # Three more clients of 2 s each, then three rounds of 8 s.
    assert progress.seconds_left() == pytest.approx(6 + 24)
    clock.time += 1
    assert progress.seconds_left() == pytest.approx(5 + 24)


def test_the_time_left_includes_the_work_after_the_replies(progress: RunProgress, clock: ManualClock) -> None:
    progress({"event": "start", "next_index": 0, "rounds": 3, "phases": [["train", 3]]})
    round_of(progress, clock, 0, "train", clients=2, each=3.0, rest=4.0)
    assert progress.done == 1
    assert progress.seconds_left() == pytest.approx(2 * (6 + 4))
    progress({"event": "round-start", "phase": "train", "index": 1, "clients": 2})
    for client in ("a", "b"):
        clock.time += 3
        progress({"event": "client-failed", "client": client, "index": 1})
    progress({"event": "merging", "index": 1})
    assert progress.text == "round 2/3 train 2/2: merging"
    assert progress.seconds_left() == pytest.approx(4 + 10)
    progress({"event": "measuring", "index": 1})
    assert progress.text == "round 2/3 train 2/2: measuring"
    clock.time += 100
    assert progress.seconds_left() == 0


def test_a_skipped_round_counts_as_done(progress: RunProgress, clock: ManualClock) -> None:
    progress({"event": "start", "next_index": 0, "rounds": 3, "phases": [["train", 1], ["distil", 2]]})
    round_of(progress, clock, 0, "train", clients=1, each=5.0, rest=0.0)
    progress({"event": "skip", "phase": "distil", "index": 1})
    assert progress.done == 2
    # The other round of its phase is expected to be skipped as well.
    assert progress.seconds_left() == 0
    progress({"event": "goodbye"})
    assert progress.text == "disconnecting sites"


def test_a_resumed_run_starts_with_the_rounds_done_before(progress: RunProgress) -> None:
    progress({"event": "resume", "next_index": 5, "rounds": 9, "phases": [["train", 4]]})
    assert progress.done == 5
    progress({"event": "round-start", "phase": "train", "index": 5, "clients": 0})
    assert progress.text == "round 6/9 train: starting"


def test_the_events_of_a_real_run_give_consistent_progress(tmp_path: Path) -> None:
    """Progress never decreases, and no time is left at the end."""
    progress, seen = RunProgress(), []

    def listen(event: dict[str, Any]) -> None:
        progress(event)
        seen.append((progress.done, progress.text, progress.seconds_left()))

    dataset = tiny_dataset(3)
    run_tiny(tmp_path / "run", "fedoss", dataset, split_by(dataset, 3, even_shares(dataset, 3, 2)), listener=listen)
    done = [row[0] for row in seen]
    assert done == sorted(done)
    assert done[-1] == progress.rounds
    assert seen[-1][2] == 0
    assert any("trains" in text for _, text, _ in seen)
    assert any("measuring" in text for _, text, _ in seen)
    first = next(i for i, row in enumerate(seen) if row[0] > 0)
    assert all(left is not None for _, _, left in seen[first:])
