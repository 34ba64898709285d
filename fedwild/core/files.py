"""Checks of files before they are read: their kind, their size, and who else can read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from shlex import quote

from fedwild.core.errors import UserError
from fedwild.core.text import size

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_regular(path: Path, what: str = "", max_bytes: int | None = None) -> None:
    """Reject what is not a regular file, such as a pipe, which would block forever, and files that are too large.

    `what` names the file in errors: an option with its value, or the path if it is empty. A file that does not exist
    raises `FileNotFoundError`.
    """
    found = os.stat(path)
    kind = stat.S_IFMT(found.st_mode)
    if kind != stat.S_IFREG:
        raise UserError(f"{what or path} is {_KINDS.get(kind, 'not a file')}: a regular file is required.")
    if max_bytes is not None and found.st_size > max_bytes:
        raise UserError(f"{what or path} has {size(found.st_size)}: at most {size(max_bytes)} are allowed.")


def check_private(path: Path, what: str) -> None:
    """Reject a private key that other users of the machine can read or change. `what` names it in errors."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        raise UserError(
            f"{what} is a private key that other users can access (mode {mode:04o}): run `chmod 600 "
            f"{quote(str(path))}`, and create a new key if others may have read it."
        )
