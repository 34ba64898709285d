"""Flower's programs as child processes: found next to this Python, kept offline, and ended together with us."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.sites import supervisor

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
}
"""No telemetry, no update check, no installation of packages, and half of Flower's polling interval."""
TERMINATE_SECONDS = 10.0
"""How long a program may take to end after SIGTERM."""
SUPERVISOR_SECONDS = 30.0
"""How long its supervisor may take after that. It needs far less, but only the supervisor finds all descendants."""


class Child:
    """A program that we started. Its output goes to a file."""

    def __init__(self, command: Sequence[str], log: Path, home: Path, descriptors: Sequence[int] = ()) -> None:
        # A module is known by its own name, not Python's.
        self.name = command[2] if command[1:2] == ["-m"] else Path(command[0]).name
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                supervised([program_path(command[0]), *command[1:]]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(home),
                pass_fds=descriptors,
                # In its own process group, so that Ctrl-C reaches only us and we end the children in order.
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        """The exit code, or None while the program runs."""
        return self.process.poll()

    def output(self) -> str:
        """Return everything that the program has printed."""
        with contextlib.suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace")
        return ""

    def output_tail(self, count: int = 2000) -> str:
        """Return the last `count` bytes of the output, which may be long."""
        with contextlib.suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - count))
            return log.read().decode(errors="replace")
        return ""

    def stop(self) -> None:
        """End the program and everything that it started: first with SIGTERM, then with SIGKILL."""
        if self.code is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(TERMINATE_SECONDS + SUPERVISOR_SECONDS)
        # A supervisor that has ended has left nothing, and another process may have its id by now.
        if self.code is None or sys.platform != "linux":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def supervised(command: list[str]) -> list[str]:
    """Return the command under a supervisor, which ends all descendants when the program ends or we do."""
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), str(TERMINATE_SECONDS), *command]


def program_path(name: str) -> str:
    """Return the path of one of Flower's programs in the environment that runs us."""
    if name == sys.executable:
        return name
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise UserError(f"{name} is not installed next to {sys.executable}: pip install 'fedwild[flower]'.")
    return str(path)


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: our programs first in PATH, a separate home, and offline."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **OFFLINE, "PATH": path, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}


def run_program(command: Sequence[str], home: Path, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run one of Flower's programs to its end."""
    try:
        return subprocess.run(
            supervised([program_path(command[0]), *command[1:]]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment(home),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"`{' '.join(command[:3])}` did not end within {seconds:.0f} seconds.") from None


def free_port() -> int:
    """Return a free port of the loopback interface.

    It is drawn below the range from which the system takes the ports of outgoing connections: the port must still be
    free when a program listens on it seconds later.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_768), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise UserError("no free port was found on the loopback interface.")


def split_address(text: str, setting: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"{setting} = {text!r} is not allowed: write HOST:PORT, such as 127.0.0.1:8443.")
    return host, int(port)


def check_host(host: str, option: str) -> None:
    """Reject a host name that does not resolve."""
    try:
        socket.getaddrinfo(host, None)
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(unresolved(host, option)) from error


def unresolved(host: str, option: str) -> str:
    """Return the message for a host name that does not resolve."""
    return f"{option}: the host name {host!r} does not resolve. Check the spelling and the network."


def bind(address: str, setting: str) -> socket.socket:
    """Return a socket bound to an address, for a child that will listen on it. It accepts no connection yet."""
    host, port = split_address(address, setting)
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{setting} = {address!r} cannot be used: {reason}. Choose another port or address.") from error
    return bound


def is_reachable(host: str, port: int, seconds: float = 3.0) -> bool:
    """Whether a process accepts connections at this address."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), seconds):
        return True
    return False


def wait_for_port(host: str, port: int, child: Child, seconds: float = 60.0) -> None:
    """Wait until a child listens on a port. If it ends instead, its output gives the reason."""
    end = time.monotonic() + seconds
    while not is_reachable(host, port, 1.0):
        if child.code is not None or time.monotonic() > end:
            raise UserError(f"{child.name} does not listen on {host}:{port}: {last_line(child)}")
        time.sleep(0.1)


def last_line(child: Child) -> str:
    """Return the last line of a child's output."""
    lines = [line.strip() for line in child.output().splitlines() if line.strip()]
    return (lines[-1] if lines else f"it ended with exit code {child.code} and no output")[:300]
