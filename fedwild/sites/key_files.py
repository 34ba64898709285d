"""Writing keys and certificates: with their permissions from the first byte on, and all of them or none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwild.core.errors import UserError


@dataclass(frozen=True)
class NewFile:
    """A file to write, with its permissions."""

    path: Path
    data: bytes
    mode: int


def write_all(files: Sequence[NewFile]) -> None:
    """Write all files or none: those that did not exist before are deleted if one cannot be written."""
    created = [file.path for file in files if not file.path.exists()]
    try:
        for file in files:
            _write(file)
    except OSError:
        for path in created:
            path.unlink(missing_ok=True)
        raise


def replace_all(folder: Path, files: Sequence[NewFile]) -> None:
    """Write files of a folder of keys, each under a temporary name first: a reader sees the old or the new file."""
    try:
        for file in files:
            file.path.parent.mkdir(exist_ok=True)
            temporary = NewFile(file.path.with_name(f".{file.path.name}.tmp"), file.data, file.mode)
            write_all([temporary])
            os.replace(temporary.path, file.path)
    except OSError as error:
        raise UserError(f"keys cannot be written to {str(folder)!r}: {error.strerror or error}.") from error


def _write(new: NewFile) -> None:
    """Write a file that never has wider permissions than its mode, not even for a moment."""
    with open(os.open(new.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, new.mode), "wb") as file:
        # os.open does not change the mode of a file that exists.
        os.fchmod(file.fileno(), new.mode)
        file.write(new.data)
