"""Which processes are still there."""

from __future__ import annotations

from typing import Any

import psutil


def living(processes: list[Any]) -> list[Any]:
    """Those that have not ended, and are not only waiting to be counted."""
    return [process for process in processes if is_alive(process)]


def is_alive(process: Any) -> bool:
    try:
        return bool(process.is_running()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        # It ended between the two questions.
        return False
