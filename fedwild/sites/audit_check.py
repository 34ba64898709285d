"""Checks an audit log, and summarises what it holds."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedwild.core.errors import explain_os_errors
from fedwild.core.text import size

FIRST = "0" * 64
"""Stands for the hash before the first line."""
Record = dict[str, Any]


def hash_of(line: Mapping[str, Any]) -> str:
    """Return the hash of a line: SHA-256 over its JSON with sorted keys, without the hash itself."""
    text = json.dumps({key: value for key, value in line.items() if key != "hash"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_head(path: Path) -> Record:
    """Return the number of lines, the last hash and the size that a log should have; a size of -1 if unknown."""
    try:
        head = json.loads(path.read_text())
        return {"lines": int(head["lines"]), "hash": str(head["hash"]), "bytes": int(head["bytes"])}
    except FileNotFoundError:
        return {"lines": 0, "hash": FIRST, "bytes": 0}
    except (ValueError, KeyError, TypeError):
        return {"lines": 0, "hash": FIRST, "bytes": -1}


@dataclass
class AuditReport:
    """What `verify` found."""

    lines: int = 0
    last: str = FIRST
    hashes: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by kind; jobs by their own kind."""
    runs: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    sent_bytes: int = 0
    first_time: str = ""
    last_time: str = ""

    def to_json(self) -> Record:
        """Return the summary as plain values."""
        keys = ("lines", "last", "requests", "runs", "refused", "sent_bytes", "first_time", "last_time")
        return {key: getattr(self, key) for key in keys}

    def lines_of_text(self) -> list[str]:
        """Return a summary."""
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(self.requests.items()))
        runs = ", ".join(f"{run} ({number})" for run, number in sorted(self.runs.items()))
        return [
            f"{self.lines} records from {self.first_time or '-'} to {self.last_time or '-'}",
            f"requests: {kinds or 'none'}",
            f"jobs by run: {runs or 'none'}",
            f"refused: {self.refused}",
            f"sent: {size(self.sent_bytes)}",
            f"last hash: {self.last}",
        ]


def verify(path: Path) -> AuditReport:
    """Return what a log holds, and every line that was changed, removed or moved."""
    report, expected = AuditReport(), 1
    for number, line in _lines(path):
        if line is None:
            report.problems.append(f"line {number} is not a record")
            continue
        found = line.get("n")
        if hash_of(line) != line.get("hash"):
            report.problems.append(f"line {number} was changed")
        elif found != expected:
            report.problems.append(_out_of_order(number, found, expected))
        elif line.get("previous") != report.last:
            report.problems.append(f"line {number} does not follow the line before it: that one was replaced")
        expected = found + 1 if isinstance(found, int) else expected + 1
        _count(report, line)
    return report


def _lines(path: Path) -> Iterator[tuple[int, Record | None]]:
    """Yield the lines of a log with their numbers; None for a line that is not a JSON object."""
    with (
        explain_os_errors(f"audit log {str(path)!r} cannot be read"),
        open(path, encoding="utf-8", errors="replace") as file,
    ):
        for number, text in enumerate(file, 1):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                line = None
            yield number, line if isinstance(line, dict) and text.endswith("\n") else None


def _out_of_order(number: int, found: Any, expected: int) -> str:
    if isinstance(found, int) and found > expected:
        missing = f"record {expected} is" if found == expected + 1 else f"records {expected} to {found - 1} are"
        return f"line {number} is record {found}: {missing} missing before it"
    return f"line {number} is record {found}, but record {expected} belongs there: it was moved or repeated"


def _count(report: AuditReport, line: Record) -> None:
    report.lines += 1
    report.last = str(line.get("hash"))
    report.hashes.add(report.last)
    report.first_time, report.last_time = report.first_time or str(line.get("time")), str(line.get("time"))
    request, sent = table_of(line.get("request")), table_of(line.get("sent"))
    kind = str(request.get("kind"))
    report.requests[f"job {request.get('job')}" if kind == "job" else kind] += 1
    if kind == "job":
        report.runs[str(request.get("run"))] += 1
    report.refused += table_of(sent.get("head")).get("kind") == "rejected"
    report.sent_bytes += sent["bytes"] if isinstance(sent.get("bytes"), int) else 0


def table_of(value: Any) -> Record:
    return value if isinstance(value, dict) else {}


def check_log(path: Path, seen: str | None = None) -> AuditReport:
    """Return the report of a log. Also compares it with its head, and with a hash that was noted elsewhere."""
    report = verify(path)
    head = path.with_suffix(".head")
    if not head.exists():
        report.problems.append(f"{str(head)!r} is missing: lines removed from the end cannot be found without it")
    else:
        then = read_head(head)
        if then["lines"] > report.lines:
            report.problems.append(f"records {report.lines + 1} to {then['lines']} are missing at the end")
        elif then["bytes"] < 0 or (then["lines"] == report.lines and then["hash"] != report.last):
            report.problems.append(f"the last record is not the one in {str(head)!r}")
    if seen is not None and seen not in report.hashes:
        report.problems.append(f"the hash {seen[:64]!r} does not occur: records were replaced")
    return report
