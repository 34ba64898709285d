"""The line of progress on a real terminal, and the plain lines elsewhere."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

from fedwild.api import Run
from fedwild.display import progress
from fedwild.display.progress import WorkDisplay
from tests.conftest import TINY, Cli

pytestmark = pytest.mark.slow

CURSOR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
ONE_LINE = re.compile(r"^.{8,20} (.*\S) +\d+:\d\d, (\d+:\d\d|-:--) left$")


def on_a_terminal(folder: Path, *arguments: str | Path, columns: int = 80) -> tuple[str, str]:
    """Run `fedwild ARGUMENTS` with standard error on a terminal; return its standard output and the terminal's text."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in {"COLUMNS", "NO_COLOR", "CI"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "fedwild", *map(str, arguments)],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**environment, "TERM": "xterm"},
    )
    os.close(theirs)
    got = b""
    try:
        while piece := os.read(ours, 65536):
            got += piece
    except OSError:
        # A pseudo-terminal raises this when the process has ended.
        pass
    os.close(ours)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, got
    return out.decode(), got.decode()


def drawn(text: str) -> list[str]:
    """Return the lines that were drawn, without cursor movements."""
    return [line for line in (CURSOR.sub("", part).rstrip() for part in re.split(r"[\r\n]+", text)) if line]


@pytest.mark.parametrize("columns", [50, 100])
def test_a_run_has_one_line_of_progress_on_a_terminal(tmp_path: Path, columns: int) -> None:
    arguments = ("run", *TINY, "--rounds", "3", "--out", "run", "--json")
    _, text = on_a_terminal(tmp_path, *arguments, columns=columns)
    lines = drawn(text)
    moving = [line for line in lines if line.endswith(" left")]
    assert moving
    assert all(ONE_LINE.match(line) and len(line) <= columns for line in moving), moving
    others = [line for line in lines if line not in moving]
    assert [line.split(":")[0] for line in others] == ["run folder run", *(f"round {i}/3 train" for i in (1, 2, 3))]
    # The line is drawn over itself, so the cursor never moves up by more than one line.
    assert not re.search(r"\x1b\[([2-9]|1\d)A", text)
    assert text.count("\x1b[1A") <= 1


def test_evaluate_shows_progress_and_prints_only_its_result(tmp_path: Path, finished_once: Path) -> None:
    out, text = on_a_terminal(tmp_path, "evaluate", finished_once, "--json", "--workers", "0")
    lines = drawn(text)
    assert lines
    assert all(ONE_LINE.match(line) for line in lines), lines
    assert out.startswith('{"metrics"') and out.count("\n") == 1


def test_quiet_draws_nothing_on_a_terminal(tmp_path: Path, finished_once: Path) -> None:
    assert on_a_terminal(tmp_path, "evaluate", finished_once, "--quiet", "--workers", "0")[1] == ""


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        (["evaluate"], ["loading the data", "scoring validation samples 2/2", "answering test samples 1/1"]),
        (["show", "confusion"], ["loading the data", "scoring validation samples 2/2", "answering test samples 1/1"]),
        (["show", "features"], ["embedding test samples", "answering test samples 1/1", "making the map (t-SNE)"]),
        (["show", "outliers"], ["loading the data", "making outliers"]),
        (["data", "show", "--out", "picture.png"], ["loading the data", "drawing"]),
    ],
)
def test_without_a_terminal_long_steps_are_printed_as_plain_lines(
    cli: Cli, finished: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], steps: list[str]
) -> None:
    of_a_run = command in (["evaluate"], ["show", "confusion"], ["show", "features"])
    rest = (finished, "--workers", "0") if of_a_run else ("--data", "synthetic:8x8x1:4:80")
    assert cli(*command, *rest).err == ""
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    printed = cli(*command, *rest).err.splitlines()
    assert [line for line in printed if line in steps] == steps
    assert cli(*command, *rest, "--quiet").err == ""


def work(terminal: bool, quiet: bool = False) -> tuple[WorkDisplay, io.StringIO, list[float]]:
    """Return a display, the stream it writes to, and the time of its clock."""
    stream, clock = io.StringIO(), [0.0]
    console = Console(file=stream, force_terminal=terminal, width=100)
    return WorkDisplay(console, quiet, lambda: clock[0]), stream, clock


def test_a_download_shows_its_size_and_the_time_left() -> None:
    display, stream, clock = work(terminal=True)
    with display:
        display.download("train.gz", 2_000_000, 10_000_000)
        clock[0] = 3.0
        # 2 MB were downloaded before. 4 MB took 3 s, so the last 4 MB take as long.
        display.download("train.gz", 6_000_000, 10_000_000)
    last = drawn(stream.getvalue())[-1]
    assert "downloading train.gz 6.0 MB of 10.0 MB" in last
    assert last.endswith("0:03, 0:03 left")


def test_a_download_of_unknown_size_shows_the_bytes_so_far() -> None:
    display, stream, _ = work(terminal=True)
    with display:
        display.download("train.gz", 2_000_000, None)
    last = drawn(stream.getvalue())[-1]
    assert "downloading train.gz 2.0 MB" in last
    assert last.endswith("0:00, -:-- left")


def test_without_a_terminal_a_long_download_prints_a_line_every_few_seconds() -> None:
    display, stream, clock = work(terminal=False)
    with display:
        for done in range(25):
            display.download("a.gz", done, 24)
            clock[0] += 1.0
    assert stream.getvalue().splitlines() == ["downloading a.gz 10 B of 24 B", "downloading a.gz 20 B of 24 B"]


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_prints_nothing(terminal: bool) -> None:
    display, stream, _ = work(terminal, quiet=True)
    with display:
        display.show("working", 1, 2)
        display.download("a.gz", 1, 2)
    assert stream.getvalue() == ""


def test_ctrl_c_ends_a_command_with_one_word(cli: Cli, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "evaluate", interrupted)
    outcome = cli("evaluate", finished)
    assert (outcome.code, outcome.out, outcome.err) == (130, "", "interrupted.\n")
