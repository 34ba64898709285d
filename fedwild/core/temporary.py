"""Temporary folders, locked while their process lives, so that those of killed processes can be removed later."""

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
MIN_AGE_SECONDS = 60.0
"""A younger folder may not be locked yet."""


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder that only this user can read. It is removed afterwards; after a kill, by the next call."""
    remove_abandoned()
    # The name is short because paths of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with open(folder / LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove the folders of this user's killed processes; keep those of other users and those without a lock file."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):
            if is_abandoned(lock):
                shutil.rmtree(lock.parent, ignore_errors=True)


def is_abandoned(lock: Path) -> bool:
    """Return whether a folder belongs to this user, is not new, and its lock is free."""
    about = lock.parent.lstat()
    if about.st_uid != os.getuid() or lock.parent.is_symlink() or time.time() - lock.lstat().st_mtime < MIN_AGE_SECONDS:
        return False
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
