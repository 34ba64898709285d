"""Real processes for tests: programs of ours and of Flower's, started and ended by id, on 127.0.0.1 alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests.processes import living

PATIENCE = 240.0
"""Seconds until a test gives up waiting: much more than it takes, since machines that test are busy."""


class Program:
    """A command under way, with what it says in a file."""

    def __init__(self, command: list[str], folder: Path, name: str, **environment: str) -> None:
        self.log = folder / f"{name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until it has said something; if it ends instead, what it said is the test's failure."""

        def heard() -> bool:
            if text in self.said():
                return True
            assert self.process.poll() is None, f"ended without saying {text!r}:\n{self.said()}"
            return False

        wait_until(heard, f"{text!r} in\n{self.said()}")

    def ended(self) -> int:
        """Its exit code, once it has ended by itself."""
        wait_until(lambda: self.process.poll() is not None, f"the end of\n{self.said()}")
        return int(self.process.returncode)

    def family(self) -> list[psutil.Process]:
        """It and all that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def kill(self) -> list[psutil.Process]:
        """End it as a crash would; returns all that it had started."""
        family = self.family()
        self.process.kill()
        self.process.wait()
        return family

    def stop(self) -> None:
        """End it as a user would, and see to it that nothing is left."""
        family = self.family()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()


def wait_until(happened: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.1)


def gone(processes: list[psutil.Process]) -> bool:
    """Whether all of these have ended."""
    return not living(processes)


def fedwild(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fedwild", *map(str, arguments)]


def flower(program: str, *arguments: object) -> list[str]:
    return [str(Path(sys.executable).parent / program), *map(str, arguments)]


class Stage:
    """All programs of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[Program] = []

    def start(self, command: list[str], name: str, **environment: str) -> Program:
        program = Program(command, self.folder, name, **environment)
        self.programs.append(program)
        return program

    def site(self, name: str, data: Path, address: str, *options: object, said: str = "") -> Program:
        command = fedwild("site", "--superlink", address, "--data", data, "--name", name, *options)
        return self.start([*command, "--folder", f"site-{name}", "--wait", "200"], said or f"site-{name}")


@contextlib.contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    """A stage that is empty afterwards, whatever happens."""
    here = Stage(folder)
    try:
        yield here
    finally:
        for program in reversed(here.programs):
            program.stop()
