"""Reading and changing the files of run folders as somebody who keeps their digests right."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedwild.core.seal import open_json, seal_json
from fedwild.runs.events import checked_line


def read_json(path: Path) -> dict[str, Any]:
    """Return the content of a sealed JSON file."""
    return open_json(path.read_bytes())


def change_json(path: Path, change: Callable[[dict[str, Any]], object] | None = None, **values: Any) -> None:
    """Change a sealed JSON file in place, by a function or by values, and seal it again."""
    table = read_json(path)
    if change is not None:
        change(table)
    path.write_bytes(seal_json({**table, **values}))


def change_log(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the events of a log in place, and check every line again."""
    check, lines = "", []
    for text in path.read_text().splitlines():
        row = json.loads(text)
        del row["check"]
        change(row)
        line, check = checked_line(row, check)
        lines.append(line)
    path.write_text("".join(lines))


def flip_bit(path: Path, place: int = -1) -> None:
    """Flip one bit of a file, by default in its last byte."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
