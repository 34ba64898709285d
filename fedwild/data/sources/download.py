"""Download of one file over HTTP: resumable, verified, and atomic."""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from fedwild.core.errors import UserError

Progress = Callable[[str, int, int | None], None]
"""Called with the file name, the bytes so far and, if known, the total bytes."""

_BLOCK = 1 << 18
MAX_ATTEMPTS = 4


def download(
    url: str, target: Path, md5: str = "", progress: Progress | None = None, timeout: float = 30.0, pause: float = 1.0
) -> Path:
    """Download `url` to `target` through `target.part`; continue after a lost connection or from an earlier .part."""
    part = target.with_name(target.name + ".part")
    for attempt in range(MAX_ATTEMPTS):
        try:
            _fetch(url, part, target.name, progress, timeout)
            break
        except urllib.error.HTTPError as problem:
            if problem.code < 500 and problem.code != 429:
                raise UserError(f"{url} cannot be downloaded: HTTP {problem.code} {problem.reason}.") from None
            last: Exception = problem
        except (OSError, http.client.HTTPException) as problem:
            last = problem
        if attempt == MAX_ATTEMPTS - 1 or isinstance(getattr(last, "reason", None), socket.gaierror):
            kept = f"; the next attempt continues from {part}" if part.exists() else ""
            raise UserError(f"{url} cannot be downloaded: {getattr(last, 'reason', '') or last}{kept}.")
        time.sleep(pause * 2**attempt)
    if md5 and _md5(part) != md5:
        part.unlink()
        raise UserError(f"{url} does not match its published checksum (md5 {md5}); the download was deleted.")
    os.replace(part, target)
    return target


def _fetch(url: str, part: Path, name: str, progress: Progress | None, timeout: float) -> None:
    """Append the missing bytes of `url` to `part`; raise OSError if the connection ends early."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "fedwild"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as problem:
        if problem.code != 416:
            raise
        if _total_size(problem.headers.get("Content-Range", "")) == have:  # the part is complete
            return
        part.unlink()
        raise ConnectionError("the partial file does not match the file on the server") from None
    with answer:
        resumed = answer.status == 206
        have = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab" if resumed else "wb") as file:
            while block := answer.read(_BLOCK):
                file.write(block)
                have += len(block)
                if progress:
                    progress(name, have, total)
    if total is not None and have < total:
        raise ConnectionError(f"the connection ended after {have} of {total} bytes")


def _total_size(content_range: str) -> int | None:
    """Return the size in 'bytes */123'."""
    size = content_range.rpartition("/")[2]
    return int(size) if size.isdigit() else None


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
