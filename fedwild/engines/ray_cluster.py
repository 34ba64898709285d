"""Connections to Ray: a private Ray on this machine, an existing cluster, or the connection of the caller.

A private Ray must end with this process, even if it is killed. Ray's own mechanism does not suffice: some of its
processes live on for minutes. Therefore a small watchdog process waits for the end of this one and then ends them all.
It finds them by a mark in their environment, which child processes inherit.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedwild.core.errors import UserError

MARK = "FEDWILD_RAY"
# Paths of sockets in Ray's folder may have 107 characters, most of which Ray uses.
MAX_PARENT_LENGTH = 30
DIAL_SECONDS = 5.0
# A cluster that does not answer within this time counts as missing.
JOIN_SECONDS = 60.0
END_SECONDS = 60.0
# A process that was started just before a kill may not have its environment yet, so the search continues for a while.
QUIET_AFTER_KILL, QUIET_AFTER_CLOSE = 2.0, 0.2
# Room in the object store for payloads and replies beside the data. Ray allocates memory only when it is used.
PAYLOAD_BYTES, MIN_STORE_BYTES = 2**30, 2**27
# Smaller answers are part of a message, which is cheaper than the object store.
MESSAGE_BYTES = 2**20


@dataclass
class Connection:
    """A connection to Ray. `close` ends exactly what `connect` started."""

    ours: bool = True
    """Whether `connect` made the connection; otherwise the caller was connected already."""
    watchdog: subprocess.Popen[bytes] | None = None
    """The watchdog of the private Ray, if there is one."""

    def close(self) -> None:
        import ray

        if self.ours:
            ray.shutdown()
        if self.watchdog is not None:
            release(self.watchdog)


def connect(address: str | None, workers: int, data_bytes: int) -> Connection:
    """Connect to the cluster at `address`, or without one to a private Ray with one core per worker."""
    import ray

    if ray.is_initialized():
        return Connection(ours=False)
    if address is None:
        # The object store has at most half of the memory; the rest goes to disk.
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        store = max(MIN_STORE_BYTES, min(data_bytes + PAYLOAD_BYTES, memory // 2))
        return Connection(watchdog=start(max(workers, 1), store))
    join(address)
    return Connection()


# --- a private Ray ------------------------------------------------------------------------------------------


def start(workers: int, store: int) -> subprocess.Popen[bytes]:
    """Start a Ray that only this machine can reach; return the watchdog that ends it."""
    import ray

    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="fw-", dir=parent if len(parent) <= MAX_PARENT_LENGTH else "/tmp")
    watchdog = start_watchdog(folder)
    set_token()
    # With SPT_NOENV, the environment of processes that change their title, and so the mark, stays readable.
    marked = {MARK: folder, "SPT_NOENV": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"}
    # Otherwise Ray would run its workers at a lower priority.
    marked["RAY_worker_niceness"] = "0"
    try:
        with restored_process(marked), loopback():
            ray.init(
                address="local",
                num_cpus=workers,
                object_store_memory=store,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
                _system_config={"max_direct_call_object_size": MESSAGE_BYTES},
            )
    except BaseException as error:
        Connection(watchdog=watchdog).close()
        if isinstance(error, Exception):
            raise UserError(f"engine.name = 'ray': Ray does not start on this machine: {one_line(error)}") from error
        raise
    return watchdog


def set_token() -> None:
    """Set a token for Ray's processes unless the user has one. Otherwise Ray would write one to the home folder.

    It is kept until this process ends, because Ray caches it for that long.
    """
    held = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if not held and not (Path.home() / ".ray" / "auth_token").exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextlib.contextmanager
def restored_process(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for Ray, then restore the environment and the signal handlers that it changed.

    Ctrl-C is deferred until then: while Ray forks its processes, Python would ignore it.
    """
    before, handlers = dict(os.environ), {}
    interrupted: list[int] = []
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        signal.signal(signal.SIGINT, lambda number, frame: interrupted.append(number))
    os.environ.update(variables)
    try:
        yield
    finally:
        for key in list(os.environ):
            if key not in before and not key.startswith("RAY_AUTH_"):
                del os.environ[key]
        os.environ.update(before)
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if interrupted:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def loopback() -> Iterator[None]:
    """Make Ray listen on 127.0.0.1; it would use the machine's external address instead."""
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


# --- an existing cluster ------------------------------------------------------------------------------------


def check_address(address: str | None) -> None:
    """Reject an address where nothing listens by raising `UserError`."""
    if address is not None and address != "auto":
        dial(address)


def join(address: str) -> None:
    """Connect to the cluster at an address, or raise `UserError` with the reason within `JOIN_SECONDS`."""
    import ray

    check_address(address)
    try:
        # Ray tries for two minutes and then ends the process, so another process tries first.
        tried = subprocess.run(
            own_command("join", address),
            env=with_our_path(),
            cwd="/",
            timeout=JOIN_SECONDS,
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        raise no_cluster(address, "Ray does not answer there") from None
    if tried.returncode:
        raise no_cluster(address, tried.stdout.strip() or "Ray does not answer there")
    with restored_process({}):
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)


def dial(address: str) -> None:
    """Check that something listens at HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdecimal():
        raise no_cluster(address, "this is not an address")
    try:
        socket.create_connection((host.strip("[]"), int(port)), DIAL_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise no_cluster(address, f"nothing listens there ({one_line(error)})") from None


def no_cluster(address: str, reason: str) -> UserError:
    import ray

    return UserError(
        f"engine.address = {address!r}: {reason.rstrip('.')}. It must be auto, or HOST:PORT of a running cluster with "
        f"Ray {ray.__version__} and Python {platform.python_version()} to which this machine belongs (`ray start`)."
    )


def try_to_join(address: str) -> int:
    """Connect, or print the reason for a failure. This runs in a separate process."""
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        # The advice after Ray's first sentence is for users of Ray.
        print(one_line(error.__cause__ or error).partition(". ")[0])
        return 1
    return 0


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# --- the watchdog -------------------------------------------------------------------------------------------


def start_watchdog(folder: str) -> subprocess.Popen[bytes]:
    """Start the watchdog of a Ray in `folder`, in a new session, which Ctrl-C does not reach."""
    return subprocess.Popen(
        own_command("watch", folder),
        env=with_our_path(),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def release(watchdog: subprocess.Popen[bytes]) -> None:
    """Ask the watchdog to end its Ray now, and wait for it."""
    assert watchdog.stdin is not None
    # A message, since a process forked from this one may keep the pipe open.
    with contextlib.suppress(BrokenPipeError):
        watchdog.stdin.write(b"close")
        watchdog.stdin.close()
    watchdog.wait()


def watch(folder: str, parent: int) -> None:
    """Wait for the parent's message or end; then end all processes with the folder's mark, and remove the folder."""
    message: bytes | None = None
    while message is None and os.getppid() == parent:
        if select.select([sys.stdin], [], [], 1.0)[0]:
            message = os.read(0, 5)
    end_marked(folder, QUIET_AFTER_CLOSE if message else QUIET_AFTER_KILL)
    shutil.rmtree(folder, ignore_errors=True)


def end_marked(folder: str, quiet: float) -> None:
    """Kill the processes with a mark repeatedly, until none has been found for `quiet` seconds."""
    end = time.monotonic() + END_SECONDS
    last_seen = time.monotonic()
    while time.monotonic() < min(end, last_seen + quiet):
        for pid in marked_processes(folder):
            last_seen = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marked_processes(folder: str) -> list[int]:
    """Return the running processes with a mark. This works on Linux only; elsewhere Ray's own reaper is used."""
    mark = f"{MARK}={folder}\0".encode()
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


# --- other processes ----------------------------------------------------------------------------------------


def python_path() -> str:
    """Return the module path of this process without the folders that every Python on this machine has."""
    common = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    ours = [str(Path(__file__).parents[2]), *map(os.path.abspath, sys.path)]
    return os.pathsep.join(dict.fromkeys(path for path in ours if not path.startswith(common)))


def with_our_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path()}


def own_command(*arguments: str) -> list[str]:
    """Return the command that runs this file in another process."""
    return [sys.executable, "-m", "fedwild.engines.ray_cluster", *arguments, str(os.getpid())]


if __name__ == "__main__":
    task, subject, parent = sys.argv[1:]
    if task == "join":
        sys.exit(try_to_join(subject))
    watch(subject, int(parent))
