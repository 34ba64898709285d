"""The append-only log of a run: one JSON object per line."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

Listener = Callable[[dict[str, Any]], None]
"""Called with every event of a run."""


def ignore_event(event: dict[str, Any]) -> None:
    """The default listener."""


class EventLog:
    """Appends events to a file and passes them to a listener.

    If a crash cut the last line short, the log starts a new line, so that no other event is damaged.
    """

    def __init__(self, path: Path, listener: Listener = ignore_event) -> None:
        self._listener = listener
        cut_short = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        self._file: TextIO = open(path, "a", encoding="utf-8")  # noqa: SIM115  (open for the run's life)
        if cut_short:
            self._file.write("\n")

    def write(self, event: str, **fields: Any) -> None:
        """Append an event and hand it to the operating system."""
        row = {"event": event, "time": round(time.time(), 3), **without_nan(fields)}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        self._listener(row)

    def announce(self, event: str, **fields: Any) -> None:
        """Pass an event to the listener only, such as the start of some work."""
        self._listener({"event": event, **fields})

    def sync(self) -> None:
        """Write the log to disk; called before a checkpoint that refers to it."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_events(path: Path) -> list[dict[str, Any]]:
    """Return the events of a log. A round that was lost in a crash and repeated appears once."""
    events: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if not is_complete(row):
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
"""The fields that readers of the log rely on."""


def is_complete(row: Any) -> bool:
    """Return whether a line is a complete event."""
    if not isinstance(row, dict) or not isinstance(row.get("event"), str):
        return False
    needed = NEEDED.get(row["event"], ())
    return all(key in row for key in needed) and ("index" not in needed or isinstance(row["index"], int))


def without_nan(value: Any) -> Any:
    """Return the value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return value
