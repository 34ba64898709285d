"""Flower's own programs as children of ours: found beside this Python, offline, and gone when we are."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fedwild.errors import UserError
from fedwild.flower import keeper

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
}
"""No call home, nothing installed behind our back, and half of Flower's waiting time."""
POLITE_SECONDS = 10.0
"""How long a program may take to end when it is asked to."""
KEEPER_SECONDS = 30.0
"""How long its keeper may take after that: much more than it does, for it alone finds all that was started."""


class Child:
    """A program that we started, with what it says in a file."""

    def __init__(self, command: Sequence[str], log: Path, home: Path, descriptors: Sequence[int] = ()) -> None:
        # Of a module, its own name and not Python's.
        self.name = command[2] if command[1:2] == ["-m"] else Path(command[0]).name
        self.log = log
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                kept([program(command[0]), *command[1:]]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(home),
                pass_fds=descriptors,
                # A group of its own, so that Ctrl-C reaches us alone and we end it in order.
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        """The exit code, once it has ended."""
        return self.process.poll()

    def said(self) -> str:
        """All that it said."""
        with contextlib.suppress(OSError):
            return self.log.read_text(encoding="utf-8", errors="replace")
        return ""

    def said_last(self, count: int = 2000) -> str:
        """The last of what it said: a log may be long."""
        with contextlib.suppress(OSError), open(self.log, "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - count))
            return log.read().decode(errors="replace")
        return ""

    def stop(self) -> None:
        """End it and whatever it started: politely, then not."""
        if self.code is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(POLITE_SECONDS + KEEPER_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def kept(command: list[str]) -> list[str]:
    """The command under a keeper, which ends all that it started when it ends or when we do."""
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), str(POLITE_SECONDS), *command]


def program(name: str) -> str:
    """One of Flower's programs, from the environment that runs us."""
    if name == sys.executable:
        return name
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise UserError(f"{name} is not installed beside {sys.executable}: pip install 'fedwild[flower]'.")
    return str(path)


def environment(home: Path) -> dict[str, str]:
    """What Flower's programs see: our own programs first, a home of their own, and no connection but ours."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **OFFLINE, "PATH": path, "FLWR_HOME": str(home), "PYTHONUNBUFFERED": "1"}


def call(command: Sequence[str], home: Path, seconds: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run one of Flower's programs to its end."""
    try:
        return subprocess.run(
            kept([program(command[0]), *command[1:]]),
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
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def split_address(text: str, setting: str) -> tuple[str, int]:
    """HOST:PORT as its two parts."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"{setting} = {text!r} is not allowed: write HOST:PORT, such as 127.0.0.1:8443.")
    return host, int(port)


def check_host(host: str, option: str) -> None:
    """Refuse a name that stands for no address."""
    try:
        socket.getaddrinfo(host, None)
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(
            f"{option}: the name {host!r} cannot be found. Is it spelt right, and is there a network?"
        ) from error


def bound(address: str, setting: str) -> socket.socket:
    """An address taken for a child that will listen there: nobody else can have it, and nobody is let in before."""
    host, port = split_address(address, setting)
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        door = socket.socket(family, kind)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(where)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{setting} = {address!r} cannot be listened on: {reason}. Choose another port or address."
        ) from error
    return door


def reachable(host: str, port: int, seconds: float = 3.0) -> bool:
    """Whether somebody listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), seconds):
        return True
    return False


def wait_for_port(host: str, port: int, child: Child, seconds: float = 60.0) -> None:
    """Wait until a child listens; what it said is the reason if it ends instead."""
    end = time.monotonic() + seconds
    while not reachable(host, port, 1.0):
        if child.code is not None or time.monotonic() > end:
            raise UserError(f"{child.name} does not listen on {host}:{port}: {last_words(child)}")
        time.sleep(0.1)


def last_words(child: Child) -> str:
    """The last line that a child said."""
    lines = [line.strip() for line in child.said().splitlines() if line.strip()]
    return (lines[-1] if lines else f"it ended with exit code {child.code} and said nothing")[:300]
