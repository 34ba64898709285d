"""Limits before allocation: what would not fit into this machine's memory is rejected with a sentence."""

from __future__ import annotations

import os
import resource
from functools import cache
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.core.text import size

MAX_SHARE = 0.8
"""The share of the memory that one array or data set may take."""
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@cache
def machine_memory() -> int:
    """Return the bytes of memory that this process may use: those of the machine, or of its container."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUPS:
        try:
            memory = min(memory, int(Path(path).read_text()))
        except (OSError, ValueError):
            continue
    return memory


def max_allocation() -> int:
    """Return the bytes that one array or data set may have."""
    return int(MAX_SHARE * machine_memory())


def check_allocation(count: int, what: str, advice: str) -> None:
    """Reject an array of `count` bytes that is too large for this machine. `what` is its subject in the error."""
    if count > max_allocation():
        raise UserError(
            f"{what} needs {size(count)} of memory, and this machine allows {size(max_allocation())}: {advice}."
        )


def limit_memory() -> None:
    """Limit the memory of this process: what exceeds it raises an error, and the system does not kill the process."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = max_allocation() if hard == resource.RLIM_INFINITY else min(max_allocation(), hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
