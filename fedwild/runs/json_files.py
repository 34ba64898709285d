"""Reading run.json and result.json, checked. This imports no torch, so that hundreds of runs are read in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError, explain_os_errors
from fedwild.core.seal import open_json
from fedwild.core.storage import read_regular
from fedwild.runs.format import check_format
from fedwild.runs.records import Facts, Result, check_record

MAX_JSON_BYTES = 100_000_000


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the contents of run.json."""
    path = folder / "run.json"
    data = read_file(path, MAX_JSON_BYTES)
    try:
        # Older formats have no digest.
        check_format(folder, open_json(data, optional=True))
        table = open_json(data)
        check_record(Facts, table)
        return table
    except ValueError as error:
        raise UserError(f"{str(path)!r} is damaged ({error}): restore it from a copy.") from None


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return the contents of result.json, or None while the run is unfinished."""
    path = folder / "result.json"
    if not path.exists():
        return None
    try:
        table = open_json(read_file(path, MAX_JSON_BYTES))
        check_record(Result, table)
        return table
    except ValueError as error:
        raise UserError(f"{str(path)!r} is damaged ({error}): delete it, then run `fedwild resume {folder}`.") from None


def read_file(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file of a run; raise a `UserError` if it cannot be read."""
    with explain_os_errors(f"{str(path)!r} cannot be read"):
        return read_regular(path, max_bytes)
