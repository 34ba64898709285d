"""The files of a round's requests to clients."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from fedwild.core.payload import Payload


class Outbox:
    """Writes a payload once for consecutive clients that get the same tensors; removes it when all have replied."""

    def __init__(self, folder: Path, index: int) -> None:
        # Executors cache payloads by file name, so no two rounds may share one.
        self._stem = f"{folder}/down-{index}"
        self._numbers = itertools.count()
        self._waiting: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        # The last payload is kept in memory, so that no other tensor can get the id of one of its tensors.
        self._last: tuple[tuple[Any, ...], str, Payload] | None = None

    def file(self, payload: Payload) -> str:
        """Return the file for one more client."""
        # The version of a tensor changes when it is changed in place.
        key = (tuple((name, id(t), t._version) for name, t in payload.tensors.items()), repr(payload.info))
        if self._last is None or self._last[0] != key:
            path = f"{self._stem}-{next(self._numbers)}.safetensors"
            self._sizes[path] = payload.write(Path(path), durable=False)
            self._waiting[path] = 0
            previous = self._last[1] if self._last is not None else None
            self._last = (key, path, payload)
            if previous is not None and not self._waiting[previous]:
                self._remove(previous)
        path = self._last[1]
        self._waiting[path] += 1
        return path

    def answered(self, path: str) -> int:
        """Note that a client of this file has replied; return the size of the file."""
        size = self._sizes[path]
        self._waiting[path] -= 1
        if not self._waiting[path] and (self._last is None or self._last[1] != path):
            self._remove(path)
        return size

    def clear(self) -> None:
        """Remove the remaining files after a round."""
        for path in list(self._waiting):
            self._remove(path)
        self._last = None

    def _remove(self, path: str) -> None:
        del self._waiting[path], self._sizes[path]
        Path(path).unlink(missing_ok=True)
