"""Temporary folders: removed afterwards, or by the next call if their process was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fedwild.core.temporary import LOCK, temporary_folder

HOLDER = """
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from fedwild.core.temporary import temporary_folder
with temporary_folder() as folder:
    (folder / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def holder(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start another process that holds a temporary folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(place)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def aged(folder: Path, seconds: float = 3600.0) -> Path:
    """Make a folder look old."""
    then = time.time() - seconds
    os.utime(folder / LOCK, (then, then))
    return folder


def test_a_folder_is_private_and_removed_with_its_content(place: Path) -> None:
    with temporary_folder() as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_text("x")
        assert folder.stat().st_mode & 0o077 == 0
    assert list(place.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_and_that_of_a_live_one_kept(place: Path) -> None:
    killed, left = holder(place)
    living, held = holder(place)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        aged(left), aged(held)
        with temporary_folder() as mine:
            assert not left.exists()
            assert (held / "file").exists()
            assert mine.exists()
    finally:
        living.kill()
        living.wait()


def test_a_new_folder_without_a_lock_is_kept(place: Path) -> None:
    young = place / "fedwild-young"
    young.mkdir()
    (young / LOCK).touch()
    with temporary_folder():
        assert young.exists()
    aged(young)
    with temporary_folder():
        assert not young.exists()


def test_folders_of_other_programs_are_kept(place: Path) -> None:
    (place / "fedwild-bench-1").mkdir()
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LOCK).touch()
    aged(elsewhere)
    (place / "fedwild-link").symlink_to(elsewhere)
    with temporary_folder():
        pass
    assert {path.name for path in place.iterdir()} == {"fedwild-bench-1", "elsewhere", "fedwild-link"}


def test_folders_of_other_users_are_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = place / "fedwild-theirs"
    theirs.mkdir()
    (theirs / LOCK).touch()
    aged(theirs)
    monkeypatch.setattr(os, "getuid", lambda: theirs.stat().st_uid + 1)
    with temporary_folder():
        assert theirs.exists()
