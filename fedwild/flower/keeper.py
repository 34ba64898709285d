"""Between us and one of Flower's programs: whatever that program starts ends with it, and it ends when we do.

Flower detaches some processes from their parent and has them ask, now and then, whether its number is still in use.
That fails where a dead parent has not been collected yet, and their own way out can wait for a server that is gone. The
keeper is where the kernel sends such orphans; it collects them, and when its program has ended it kills what is left.

It runs as a file of its own, with nothing but the standard library, so that it starts at once:
`python -I -S keeper.py PARENT SECONDS COMMAND...`. SIGTERM asks the program to end and gives it SECONDS; SIGHUP, which
the kernel sends when our process is gone, asks nobody.
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
"""Of prctl(2)."""
AWAITED = {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP}


def main(parent: int, seconds: float, command: list[str]) -> int:
    """Run `command` to its end and leave nothing of it behind; returns its exit code."""
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGHUP)
    prctl(SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        return 1
    program = start(command)
    code = ended(program, seconds)
    end_all()
    return code


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def start(command: list[str]) -> int:
    """The program's process id. Should even the keeper be killed, it is killed as well."""
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


def ended(program: int, seconds: float) -> int:
    """Wait for the program's end, or make an end of it when we are told to; returns its exit code, or 128 + signal."""
    deadline = float("inf")
    while True:
        with contextlib.suppress(ChildProcessError):
            while (collected := os.waitpid(-1, os.WNOHANG))[0]:
                if collected[0] == program:
                    code = os.waitstatus_to_exitcode(collected[1])
                    return code if code >= 0 else 128 - code
        if time.monotonic() > deadline:
            os.kill(program, signal.SIGKILL)
        heard = signal.sigtimedwait(AWAITED, max(0.0, min(3600.0, deadline - time.monotonic())) + 0.01)
        if heard is None:
            continue
        if heard.si_signo == signal.SIGTERM and deadline == float("inf"):
            os.kill(program, signal.SIGTERM)
            deadline = time.monotonic() + seconds
        if heard.si_signo == signal.SIGHUP:
            deadline = 0.0


def end_all() -> None:
    """Kill and collect until there is nobody left: the children of a process that is killed come to us."""
    while True:
        for child in children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children() -> list[int]:
    """Processes whose parent we are, those that have come to us among them."""
    mine = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            # It may have ended since the folder was listed.
            with contextlib.suppress(OSError):
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                mine += [int(folder.name)] if parent == os.getpid() else []
    return mine


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
