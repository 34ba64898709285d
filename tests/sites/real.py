"""Real processes for tests: our programs and Flower's, on 127.0.0.1, started and ended by process id."""

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

MAX_WAIT = 240.0
"""Seconds until a test gives up: far more than it needs, since test machines are busy."""


class Program:
    """A running command, with its output in a file."""

    def __init__(self, command: list[str], folder: Path, name: str, **environment: str) -> None:
        self.command = command
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

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until the output contains a text. If the program ends instead, the test fails with its output."""

        def is_printed() -> bool:
            if text in self.output():
                return True
            assert self.process.poll() is None, f"ended without printing {text!r}:\n{self.output()}"
            return False

        wait_until(is_printed, f"{text!r} in\n{self.output()}")

    def exit_code(self) -> int:
        """Wait until the program has ended and return its exit code."""
        wait_until(lambda: self.process.poll() is not None, f"the end of\n{self.output()}")
        return int(self.process.returncode)

    def processes(self) -> list[psutil.Process]:
        """Return the program's process and all its descendants."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def kill(self) -> list[psutil.Process]:
        """End the program as a crash would. Returns its process and descendants."""
        processes = self.processes()
        self.process.kill()
        self.process.wait()
        return processes


def stop_all(programs: list[Program]) -> None:
    """End programs with Ctrl-C, then kill what is left: ours at the same time, then Flower's, the last one first."""
    processes = [process for program in programs for process in program.processes()]
    ours = [program for program in programs if "fedwild" in program.command]
    flowers = [[program] for program in reversed(programs) if "fedwild" not in program.command]
    for group in (ours, *flowers):
        for program in group:
            if program.process.poll() is None:
                program.process.send_signal(signal.SIGINT)
        for program in group:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.process.wait(20)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for program in programs:
        program.process.wait()


def wait_until(condition: Callable[[], bool], what: str, seconds: float = MAX_WAIT) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.1)


def have_ended(processes: list[psutil.Process]) -> bool:
    return not living(processes)


def fedwild(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "fedwild", *map(str, arguments)]


def flower(program: str, *arguments: object) -> list[str]:
    return [str(Path(sys.executable).parent / program), *map(str, arguments)]


class Programs:
    """All programs of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: list[Program] = []

    def start(self, command: list[str], name: str, **environment: str) -> Program:
        program = Program(command, self.folder, name, **environment)
        self.programs.append(program)
        return program

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds. The test fails at once if a program that was not killed has failed."""

        def is_met() -> bool:
            for program in self.programs:
                failed = program.process.poll() not in (None, 0, -signal.SIGKILL)
                assert not failed, f"failed before {what}: {program.command}\n{program.output()}"
            return condition()

        wait_until(is_met, what)

    def site(self, name: str, data: Path, address: str, *options: object, log: str = "") -> Program:
        command = fedwild("site", "--superlink", address, "--data", data, "--name", name, *options)
        command += ["--policy", str(policy_file(self.folder))]
        return self.start([*command, "--folder", f"site-{name}", "--wait", "200"], log or f"site-{name}")


def policy_file(folder: Path) -> Path:
    """Write a policy that lets sites work with a handful of samples."""
    path = folder / "policy.toml"
    path.write_text("min_batch_size = 1\nmin_count = 1\n")
    return path


@contextlib.contextmanager
def running_programs(folder: Path) -> Iterator[Programs]:
    """Yield an object that starts programs, and end all of them afterwards."""
    started = Programs(folder)
    try:
        yield started
    finally:
        stop_all(started.programs)
