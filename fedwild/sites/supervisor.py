"""Runs one of Flower's programs and leaves no process behind when the program or the coordinator ends.

Flower detaches some processes from their parent and lets them check, now and then, whether the parent's process id is
still in use. This check fails for a dead parent that has not been collected yet, and their own shutdown can wait for a
server that is gone. The supervisor makes itself the parent of such orphans (a "subreaper"), collects them, and kills
what is left once its program has ended.

It uses only the standard library and starts at once: `python -I -S supervisor.py PARENT SECONDS COMMAND...`. On SIGTERM
it asks the program to end and waits SECONDS before it kills it. On SIGHUP, which the kernel sends when our process is
gone, it kills the program immediately.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36
"""Options of prctl(2)."""
SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP}


def main(parent: int, seconds: float, command: list[str]) -> int:
    """Run `command` to its end, kill every process that it started, and return its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGHUP)
    prctl(SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        return 1
    program = start(command)
    code = wait_for(program, seconds)
    kill_descendants()
    return code


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def start(command: list[str]) -> int:
    """Start the program and return its process id. The kernel kills it if the supervisor is killed."""
    program = os.fork()
    if program:
        return program
    try:
        prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execv(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def wait_for(program: int, seconds: float) -> int:
    """Wait until the program ends, or end it on a signal. Return its exit code, or 128 + signal number."""
    deadline = float("inf")
    while True:
        with contextlib.suppress(ChildProcessError):
            while (collected := os.waitpid(-1, os.WNOHANG))[0]:
                if collected[0] == program:
                    code = os.waitstatus_to_exitcode(collected[1])
                    return code if code >= 0 else 128 - code
        if time.monotonic() > deadline:
            os.kill(program, signal.SIGKILL)
        received = signal.sigtimedwait(SIGNALS, max(0.0, min(3600.0, deadline - time.monotonic())) + 0.01)
        if received is None:
            continue
        if received.si_signo == signal.SIGTERM and deadline == float("inf"):
            os.kill(program, signal.SIGTERM)
            deadline = time.monotonic() + seconds
        if received.si_signo == signal.SIGHUP:
            deadline = 0.0


def kill_descendants() -> None:
    """Kill and collect children until none is left. Children of a killed child become ours."""
    while True:
        for child in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children() -> list[int]:
    """Return the ids of our child processes, including adopted ones."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            # The process may have ended since the folder was listed.
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                found += [int(folder.name)] if parent == os.getpid() else []
    return found


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
