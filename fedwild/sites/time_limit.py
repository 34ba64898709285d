"""Ends work that takes too long, in the thread that does it."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator


class TimeExceeded(BaseException):
    """The time for a piece of work is over. Not an `Exception`, so that the work cannot catch it by accident."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeExceeded` in this thread after `seconds`, between two steps of its Python code."""
    thread, lock, active = threading.get_ident(), threading.Lock(), True

    def stop() -> None:
        with lock:
            if active:
                _raise_in(thread, TimeExceeded)

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            active = False
        # If the time ended just now, the exception has not been raised yet.
        _raise_in(thread, None)


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    """Let the interpreter raise an exception in a thread, or take it back if it has not been raised yet."""
    kind = ctypes.py_object(exception) if exception is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), kind)
