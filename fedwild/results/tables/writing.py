"""A table into a file, in the format that the file's name says."""

from __future__ import annotations

import os
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.results.tables.formats import FORMATS
from fedwild.results.tables.model import ResultTable


def format_of(path: Path) -> str:
    """html, csv, tex or md; to be asked before long work whose table would have nowhere to go."""
    format = path.suffix.lower().removeprefix(".")
    if format not in FORMATS:
        raise UserError(f"--out {str(path)!r} is not allowed: it must end with .{', .'.join(FORMATS)}.")
    if path.is_dir():
        raise UserError(f"--out {str(path)!r} is a folder: name a file.")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"--out {str(path)!r} cannot be written: nothing can be put into {str(parent)!r}.")
    return format


def write_table(table: ResultTable, path: Path) -> None:
    """Write the table, whole or not at all."""
    # Brings torch along, which a table on a terminal does without.
    from fedwild.core.payload import write_atomically

    text = FORMATS[format_of(path)](table)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A folder's name may have characters that UTF-8 has not.
        write_atomically(path, text.encode(errors="replace"), durable=False)
    except OSError as error:
        raise UserError(f"--out {str(path)!r} cannot be written: {error.strerror or error}.") from None
