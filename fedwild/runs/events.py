"""The append-only log of a run: one JSON object per line, each with a check of itself and of the line before.

The check of a line is the digest of the previous line's check and of the line without its own. A line that has changed
fails its own check. If a line is lost, the next one fails. A line that a killed process left half-written has no check,
and the next line continues from the line before it. A checkpoint and `result.json` hold the check of the last line
before them, so a log that has lost its end is noticed as well.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedwild.core.errors import DamageWarning, UserError, explain_os_errors
from fedwild.core.storage import create, open_regular
from fedwild.runs.records import check_event

Listener = Callable[[dict[str, Any]], None]
"""Called with every event of a run."""
START = b'{"event": "'
CHECK = ', "check": "'
CHECK_BYTES = 8
_TAIL = len(CHECK) + 2 * CHECK_BYTES + len('"}')
MAX_LINE_BYTES = 16_000_000
"""A longer line is damaged: a log without line ends must not cost memory."""


def ignore_event(event: dict[str, Any]) -> None:
    """The default listener."""


class EventLog:
    """Appends events to a file and passes them to a listener.

    If a crash cut the last line short, the log starts a new line, so that no other event is damaged.
    """

    def __init__(self, path: Path, listener: Listener = ignore_event) -> None:
        self._listener = listener
        self.check = ""
        """The check of the last line."""
        line = b""
        for line in _lines(path) if path.exists() else ():
            self.check = _parts(line)[1] or self.check
        self._separator = "" if not line or line.endswith(b"\n") else "\n"
        self._file = open(create(path, flags=os.O_APPEND), "a", encoding="utf-8")  # noqa: SIM115  (open for the run's life)

    def write(self, event: str, **fields: Any) -> None:
        """Append an event and hand it to the operating system."""
        row = {"event": event, "time": round(time.time(), 3), **without_nan(fields)}
        line, self.check = checked_line(row, self.check)
        self._file.write(self._separator + line)
        self._separator = ""
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


@dataclass
class CheckedLog:
    """The intact lines of a log, and what is wrong with it."""

    events: list[dict[str, Any]] = field(default_factory=list)
    """A round that was lost in a crash and repeated appears once."""
    checks: set[str] = field(default_factory=set)
    damaged: list[int] = field(default_factory=list)
    """The numbers of damaged lines, counted from 1. A line after a lost one counts, and one that is no event."""

    def problem(self, anchor: str = "") -> str:
        """Return what is wrong, or an empty text. `anchor` is the check of a line that the log must have."""
        if self.damaged:
            more = f" and {len(self.damaged) - 1} more" if len(self.damaged) > 1 else ""
            return f"line {self.damaged[0]}{more} changed after it was written, or the line before is lost"
        return "its last lines are lost" if anchor and anchor not in self.checks else ""


def check_log(path: Path) -> CheckedLog:
    """Read a log and check every line."""
    log, previous, unfinished = CheckedLog(), "", 0
    number = 0
    for number, line in enumerate(_lines(path), start=1):
        body, check = _parts(line)
        if not check:
            # Half-written, if it begins as events do and the next line continues from the line before this one.
            if not START.startswith(line.removesuffix(b"\n")[: len(START)]):
                log.damaged.append(number)
            unfinished = unfinished or number
            continue
        row = _event(body) if _check(previous, body) == check else None
        if row is None:
            log.damaged.append(unfinished or number)
        else:
            log.checks.add(check)
            if row["event"] == "resume":
                log.events = [e for e in log.events if e.get("index", -1) < row["next_index"]]
            log.events.append(row)
        previous, unfinished = check, 0
    if unfinished and (unfinished < number or line.endswith(b"\n") or _parts(line[:-1])[1]):
        log.damaged.append(unfinished)
    return log


def read_events(path: Path, anchor: str = "") -> list[dict[str, Any]]:
    """Return the intact events of a log. A damaged line is ignored with a warning; without an intact one, raise."""
    with explain_os_errors(f"{str(path)!r} cannot be read"):
        log = check_log(path)
    problem = log.problem(anchor)
    if problem and not log.events:
        raise UserError(f"{str(path)!r} is damaged, no line of it is intact: restore it from a copy.")
    if problem:
        warnings.warn(f"{str(path)!r} is damaged ({problem}): only intact lines are used.", DamageWarning, stacklevel=2)
    return log.events


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        while line := file.readline(MAX_LINE_BYTES):
            yield line


def _parts(line: bytes) -> tuple[str, str]:
    """Return a line without its check, and the check; the check is empty if the line has none."""
    text = line.decode(errors="replace").removesuffix("\n")
    body, check = text[:-_TAIL] + "}", text[-_TAIL:].removeprefix(CHECK).removesuffix('"}')
    return (body, check) if text.endswith(f'{CHECK}{check}"}}') and len(text) > _TAIL else (text, "")


def checked_line(row: dict[str, Any], previous: str) -> tuple[str, str]:
    """Return the line of an event, and its check; `previous` is the check of the line before."""
    body = json.dumps(row)
    check = _check(previous, body)
    return f'{body[:-1]}{CHECK}{check}"}}\n', check


def _check(previous: str, body: str) -> str:
    return hashlib.blake2b(f"{previous}{body}".encode(), digest_size=CHECK_BYTES).hexdigest()


def _event(body: str) -> dict[str, Any] | None:
    """Return the event of a line, if it has all fields that readers rely on."""
    try:
        row: dict[str, Any] = json.loads(body)
        check_event(row)
        return row
    except (ValueError, RecursionError):
        return None


def without_nan(value: Any) -> Any:
    """Return the value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return value
