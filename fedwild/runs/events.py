"""The append-only log of a run: one JSON object per line."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any, TextIO


class EventLog:
    """Appends events. A line that a crash cut short is ended first, so that it spoils no other."""

    def __init__(self, path: Path) -> None:
        cut_short = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        self._file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115  (open for the run's life)
        if cut_short:
            self._file.write("\n")

    def write(self, event: str, **fields: Any) -> dict[str, Any]:
        """Append one event and hand it to the operating system."""
        row = {"event": event, "time": round(time.time(), 3), **without_nan(fields)}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        return row

    def sync(self) -> None:
        """Make sure the log is on disk, before a checkpoint says that it is."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    """The history as it counts: rounds that were begun, lost in a crash and done again appear once."""
    events: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if not is_whole(row):
            continue
        if row["event"] == "resume":
            events = [e for e in events if e.get("index", -1) < row["next_index"]]
        events.append(row)
    return events


NEEDED = {
    "start": ("rounds",),
    "resume": ("next_index", "rounds"),
    "round-start": ("index", "phase"),
    "round": ("index", "phase", "loss", "seconds", "evaluation_seconds", "metrics"),
    "skip": ("index", "phase"),
    "client": ("index", "phase", "client", "bytes_up", "bytes_down"),
    "client-failed": ("index", "phase", "client", "bytes_up", "bytes_down"),
    "end": ("metrics",),
}
"""What every reader of the log relies on."""


def is_whole(row: Any) -> bool:
    """Whether a line is an event with all that belongs to it, and not what a crash or a hand left of one."""
    if not isinstance(row, dict) or not isinstance(row.get("event"), str):
        return False
    needed = NEEDED.get(row["event"], ())
    return all(key in row for key in needed) and ("index" not in needed or isinstance(row["index"], int))


def without_nan(value: Any) -> Any:
    """The value with NaN and infinity as None, which JSON can say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return value
