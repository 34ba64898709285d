"""Writing a table to a file, in the format that its suffix names."""

from __future__ import annotations

import os
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.core.storage import write_atomically
from fedwild.results.tables.formats import FORMATS
from fedwild.results.tables.model import ResultTable


def format_of(path: Path) -> str:
    """Return html, csv, tex or md, or reject the file. Call it before long work whose result goes there."""
    format = path.suffix.lower().removeprefix(".")
    if format not in FORMATS:
        raise UserError(f"--out {str(path)!r} is not allowed: it must end with .{', .'.join(FORMATS)}.")
    if path.is_dir():
        raise UserError(f"--out {str(path)!r} is a folder: give a file name.")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"--out {str(path)!r} cannot be written: the folder {str(parent)!r} is not writable.")
    return format


def write_table(table: ResultTable, path: Path) -> None:
    """Write the complete table, or nothing."""
    text = FORMATS[format_of(path)](table)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Names of folders may have characters that UTF-8 cannot encode.
        write_atomically(path, text.encode(errors="replace"), durable=False, private=False)
    except OSError as error:
        raise UserError(f"--out {str(path)!r} cannot be written: {error.strerror or error}.") from None
