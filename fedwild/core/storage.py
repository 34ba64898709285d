"""Storing files: atomic writes, permissions for the owner only, and reads that cannot hang."""

from __future__ import annotations

import os
import stat
import threading
from io import BufferedReader
from pathlib import Path

PRIVATE_FOLDER = 0o700
READABLE, OPEN = 0o044, 0o055
"""The permissions of group and others that a file and a folder take over from the folder around them."""


def write_atomically(path: Path, data: bytes | bytearray, durable: bool = True, private: bool = True) -> None:
    """Write a file through a temporary file in the same folder; if `durable`, it also survives a power failure.

    A private file can be read by those who may read its folder, whatever the umask: by its owner only, unless the
    folder is shared. Other files get the permissions of the umask.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(create(temporary, private), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def create(path: Path, private: bool = True, flags: int = os.O_TRUNC) -> int:
    """Open a file for writing, create it if it does not exist, and return its descriptor."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o600 if private else 0o666)
    if private:
        # Also readable for those with whom the folder is shared.
        os.fchmod(descriptor, 0o600 | (path.parent.stat().st_mode & READABLE))
    return descriptor


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, each open to its owner and to those who may open its own parent."""
    if folder.is_dir():
        return
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    folder.chmod(PRIVATE_FOLDER | (folder.parent.stat().st_mode & OPEN))


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. Anything but a regular file raises an `OSError`: a pipe would block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is not a regular file", str(path))
    return open(descriptor, "rb")


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a regular file that is not larger than `max_bytes`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise OSError(None, f"it has {size} bytes, which is more than the {max_bytes} that are allowed", str(path))
        return file.read(max_bytes)
