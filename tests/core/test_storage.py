"""Permissions do not depend on the umask, and only regular files are read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedwild.core.storage import make_folder, open_regular, read_regular, write_atomically


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_private_files_and_folders_are_open_to_their_owner_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    make_folder(tmp_path / "a" / "b")
    write_atomically(tmp_path / "a" / "b" / "file", b"x")
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b"), mode(tmp_path / "a" / "b" / "file")) == (
        *(0o700, 0o700),
        0o600,
    )


@pytest.mark.usefixtures("umask")
def test_files_in_a_shared_folder_can_be_read_by_the_same_people(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    make_folder(tmp_path / "a")
    write_atomically(tmp_path / "a" / "file", b"x")
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "file")) == (0o750, 0o640)


def test_other_files_follow_the_umask(tmp_path: Path, umask: int) -> None:
    write_atomically(tmp_path / "table.csv", b"x", private=False)
    assert mode(tmp_path / "table.csv") == 0o666 & ~umask


def test_what_is_not_a_regular_file_is_rejected_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "device", tmp_path):
        with pytest.raises(OSError, match=r"not a regular file|Is a directory"):
            open_regular(path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 11)
    assert read_regular(tmp_path / "file", 11) == b"x" * 11
    with pytest.raises(OSError, match="it has 11 bytes"):
        read_regular(tmp_path / "file", 10)
