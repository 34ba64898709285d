"""How many workers this machine has room for."""

from __future__ import annotations

import os


def worker_count(asked: int | None) -> int:
    """As many as asked for, or one per core this process may use."""
    if asked is not None:
        return asked
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
