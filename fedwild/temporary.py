"""Folders for a while: each is locked as long as its process lives, so that what a killed one left can be removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "fedwild-"
LOCK = ".in-use"
YOUNG_SECONDS = 60.0
"""A folder as young as this may be about to be locked."""


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new folder of this user's alone. It goes away afterwards, or, if we are killed, when another is made."""
    remove_left_behind()
    # A short name, since the path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with open(folder / LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left_behind() -> None:
    """Remove the folders of this user's processes that were killed. Others' and such without a lock stay."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):
            if is_left_behind(lock):
                shutil.rmtree(lock.parent, ignore_errors=True)


def is_left_behind(lock: Path) -> bool:
    """Whether a folder is ours, not brand-new, and nobody holds its lock."""
    about = lock.parent.lstat()
    if about.st_uid != os.getuid() or lock.parent.is_symlink() or time.time() - lock.lstat().st_mtime < YOUNG_SECONDS:
        return False
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
