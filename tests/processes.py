"""Which processes are still running."""

from __future__ import annotations

from typing import Any

import psutil


def living(processes: list[Any]) -> list[Any]:
    """Return the processes that have not ended; a zombie counts as ended."""
    return [process for process in processes if is_alive(process)]


def is_alive(process: Any) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        # It ended between the two calls.
        return False
