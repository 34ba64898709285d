"""The audit log of a site: one JSON line for every request and what was sent back, chained by SHA-256.

Each line holds the hash of the line before, so that a changed, removed or reordered line is found. The last hash is
also in a second file, `audit.head`, so that lines missing at the end are found, too. Somebody who may write both files
can make a new chain: note the last hash elsewhere, and check with `fedwild audit FILE --seen HASH` that it is still
there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload
from fedwild.core.storage import write_atomically
from fedwild.sites.audit_check import FIRST, Record, hash_of, read_head, table_of, verify
from fedwild.sites.envelope import Envelope

MAX_HEAD_CHARACTERS = 100_000
"""A longer head of a reply is recorded by its hash alone."""


class AuditLog:
    """Appends records to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._head = path.with_suffix(".head")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write a record durably. A damaged log is put aside, and the new one names it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            head = read_head(self._head)
            if self._bytes() != head["bytes"]:
                head = self._restore()
            self._write(record, head)

    def _write(self, record: Mapping[str, Any], head: Mapping[str, Any]) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"n": head["lines"] + 1, "time": when, **record, "previous": head["hash"]}
        line["hash"] = hash_of(line)
        data = (json.dumps(line, sort_keys=True) + "\n").encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "ab", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())
        now = {"lines": line["n"], "hash": line["hash"], "bytes": self._bytes()}
        write_atomically(self._head, json.dumps(now).encode())

    def _bytes(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _restore(self) -> Record:
        """Return the head of a log that does not match it: after a power failure, or because somebody changed it."""
        report = verify(self.path) if self.path.exists() else None
        if report is not None and not report.problems:
            # The line was written, the head was not.
            return {"lines": report.lines, "hash": report.last, "bytes": self._bytes()}
        aside = None
        if report is not None:
            aside = self.path.with_name(f"{self.path.stem}-damaged-{time.time_ns()}{self.path.suffix}")
            self.path.rename(aside)
        self._head.unlink(missing_ok=True)
        head = {"lines": 0, "hash": FIRST}
        found = report.problems[0] if report else "the log is missing"
        self._write({"request": {"kind": "damaged"}, "log": str(aside.name if aside else ""), "problem": found}, head)
        return read_head(self._head)


def describe_exchange(request: Envelope, reply: Envelope) -> Record:
    """Return the record of a request and what was sent back: names, shapes, sizes and digests, never values."""
    job = table_of(request.head.get("job"))
    step = table_of(job.get("step"))
    asked = {"kind": request.head.get("kind"), "run": request.head.get("run"), "job": job.get("kind")}
    asked |= {"round": step.get("index"), "phase": step.get("phase")}
    head = {"head": reply.head} if len(reply.head_text()) <= MAX_HEAD_CHARACTERS else {}
    return {
        "request": {key: short(value) for key, value in asked.items() if value is not None} | digest_of(request),
        "sent": {**describe_body(reply), **head, **digest_of(reply)},
    }


def short(value: Any) -> Any:
    """Return a value from outside for the log."""
    return value if isinstance(value, (int, float)) else str(value)[:100]


def digest_of(envelope: Envelope) -> Record:
    head = envelope.head_text().encode()
    digest = hashlib.sha256(head)
    digest.update(envelope.body)
    return {"bytes": len(head) + len(envelope.body), "sha256": digest.hexdigest()}


def describe_body(envelope: Envelope) -> Record:
    """Return the names, types and shapes of the tensors of a reply, and the keys of its JSON part."""
    if not envelope.body:
        return {}
    try:
        payload = Payload.decode(bytes(envelope.body))
    except BadReply:
        return {"tensors": None}
    tensors = {
        name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape] for name, tensor in payload.tensors.items()
    }
    return {"tensors": tensors, "info": sorted(payload.info)}
