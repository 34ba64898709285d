"""The log: a changed or lost line is found, and a line that a kill cut short is not taken for damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fedwild.core.errors import DamageWarning, UserError
from fedwild.runs.events import EventLog, check_log, read_events


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    written = EventLog(path)
    for number in range(5):
        written.write("note", text=f"number {number}")
    written.close()
    return path


def texts(path: Path) -> list[str]:
    return [event["text"] for event in read_events(path)]


def test_every_changed_byte_is_found(log: Path) -> None:
    data, draw = log.read_bytes(), random.Random(0)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << draw.randrange(8)
        log.write_bytes(changed)
        assert check_log(log).damaged, place


def test_intact_lines_of_a_damaged_log_are_read_with_a_warning(log: Path) -> None:
    log.write_bytes(log.read_bytes().replace(b"number 2", b"number 9"))
    with pytest.warns(DamageWarning, match="line 3 changed after it was written"):
        assert texts(log) == ["number 0", "number 1", "number 3", "number 4"]


def test_a_lost_line_is_found(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:2] + lines[3:]))
    assert check_log(log).damaged == [3]


def test_lost_lines_at_the_end_are_found_by_the_check_of_the_last(log: Path) -> None:
    last = EventLog(log).check
    lines = log.read_bytes().splitlines(keepends=True)
    assert not check_log(log).problem(last)
    log.write_bytes(b"".join(lines[:3]))
    assert check_log(log).problem(last) == "its last lines are lost"


@pytest.mark.parametrize("kept", range(1, 60))
def test_a_line_cut_by_a_kill_is_not_damage_and_the_log_continues(log: Path, kept: int) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-1]) + lines[-1][:kept])
    assert not check_log(log).damaged
    again = EventLog(log)
    again.write("note", text="again")
    again.close()
    assert not check_log(log).damaged
    assert texts(log)[-1] == "again"


def test_a_log_without_an_intact_line_is_an_error(log: Path) -> None:
    log.write_bytes(b"\0" * 500)
    with pytest.raises(UserError, match="no line of it is intact"):
        read_events(log)
