"""How a process that does clients' work uses the machine: one thread, and memory that it keeps."""

from __future__ import annotations

import contextlib
import ctypes

import torch

# Parameters of glibc's mallopt (malloc.h).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def single_thread() -> None:
    """Use one thread and flush denormals: this is faster with one process per core, and bits agree everywhere."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_memory()


def keep_memory() -> None:
    """Make glibc keep freed memory. Otherwise each batch's tensors are fetched from the system page by page."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, 2**25)
        library.mallopt(M_TRIM_THRESHOLD, 2**29)
