"""Where Ray comes from: started for us on this machine, a cluster that is there already, or the caller's own.

A Ray of our own must not outlive us, not even if we are killed. Ray's own means do not suffice, for some of its
processes live on for minutes. So a watchdog, the smallest of processes, waits for our end and then ends them all. It
knows them by a mark in their environment, which every process has from the one that started it.
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
# Sockets lie in Ray's folder, and the system allows them 107 characters, of which Ray uses most.
LONGEST_PARENT = 30
DIAL_SECONDS = 5.0
# Within this, a cluster has answered, or we say that there is none.
JOIN_SECONDS = 60.0
END_SECONDS = 60.0
# After a kill, a process may just have been started and not yet have its environment: it is waited for.
QUIET_AFTER_KILL, QUIET_AFTER_CLOSE = 2.0, 0.2
# Beside the data, the object store holds what travels; Ray itself takes nothing before it is used.
MOVING_BYTES, LEAST_BYTES = 2**30, 2**27
# A smaller answer is part of a message, which is cheaper than a way through the object store.
MESSAGE_BYTES = 2**20


@dataclass
class Connection:
    """Our hold on Ray: lets go of exactly what was taken."""

    ours: bool = True
    """Whether we connected, or found the caller connected."""
    watchdog: subprocess.Popen[bytes] | None = None
    """Guards the Ray that we started, if we did."""

    def close(self) -> None:
        import ray

        if self.ours:
            ray.shutdown()
        if self.watchdog is not None:
            dismiss(self.watchdog)


def connect(address: str | None, workers: int, data_bytes: int) -> Connection:
    """A connection to the cluster at `address`, or else to a Ray of our own with a core for each worker."""
    import ray

    if ray.is_initialized():
        return Connection(ours=False)
    if address is None:
        return Connection(watchdog=start(max(workers, 1), store_bytes(data_bytes)))
    join(address)
    return Connection()


# --- a Ray of our own ---------------------------------------------------------------------------------------


def start(workers: int, store: int) -> subprocess.Popen[bytes]:
    """Start a Ray that only this machine can reach; returns the watchdog that ends it."""
    import ray

    folder = tempfile.mkdtemp(prefix="fw-", dir=short_parent())
    watchdog = watched(folder)
    share_secret()
    # With SPT_NOENV, processes that change their title keep their environment, and so the mark, readable.
    marked = {MARK: folder, "SPT_NOENV": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"}
    # Ray would let all other work on this machine go first.
    marked["RAY_worker_niceness"] = "0"
    try:
        with undisturbed(marked), loopback():
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
            raise UserError(f"engine.name = 'ray': Ray cannot be started here: {one_line(error)}") from error
        raise
    return watchdog


def short_parent() -> str:
    """Where temporary folders go, if its name is short enough for sockets."""
    parent = tempfile.gettempdir()
    return parent if len(parent) <= LONGEST_PARENT else "/tmp"


def store_bytes(data_bytes: int) -> int:
    """How much the object store may hold; more than half of the memory goes to disk."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(LEAST_BYTES, min(data_bytes + MOVING_BYTES, memory // 2))


def share_secret() -> None:
    """Give Ray a token for its processes, unless the user has one: else it would leave one in the home folder.

    It stays for the life of this process, since Ray remembers it that long, too.
    """
    held = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if not held and not (Path.home() / ".ray" / "auth_token").exists():
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


@contextlib.contextmanager
def undisturbed(variables: dict[str, str]) -> Iterator[None]:
    """Lend Ray environment variables, and then put back what it changed in a process that is not its own.

    Ctrl-C waits until then: while Ray forks its processes, Python would drop it.
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
    """Have Ray take 127.0.0.1 at its word; it would use this machine's outward address instead."""
    from ray._private import ray_constants

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


# --- a cluster that is there already ------------------------------------------------------------------------


def check_address(address: str | None) -> None:
    """Refuse an address where nothing listens."""
    if address is not None and address != "auto":
        dial(address)


def join(address: str) -> None:
    """Connect to the cluster at an address, or say within seconds why not."""
    import ray

    check_address(address)
    try:
        # Ray's own attempt takes two minutes and then ends the process: one that can be spared goes first.
        tried = subprocess.run(
            here("join", address), env=with_our_path(), cwd="/", timeout=JOIN_SECONDS, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        raise no_cluster(address, "no Ray answers there") from None
    if tried.returncode:
        raise no_cluster(address, tried.stdout.strip() or "no Ray answers there")
    with undisturbed({}):
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)


def dial(address: str) -> None:
    """See whether anything listens at HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or "/" in host or not port.isdecimal():
        raise no_cluster(address, "this is no address")
    try:
        socket.create_connection((host.strip("[]"), int(port)), DIAL_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise no_cluster(address, f"nothing listens there ({one_line(error)})") from None


def no_cluster(address: str, reason: str) -> UserError:
    import ray

    return UserError(
        f"engine.address = {address!r}: {reason.rstrip('.')}. It must be auto, or HOST:PORT of a running cluster with "
        f"Ray {ray.__version__} and Python {platform.python_version()} that this machine is a node of (`ray start`)."
    )


def try_to_join(address: str) -> int:
    """In a process of its own: connect, or print why not."""
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        # What Ray advises after its first sentence is for users of Ray.
        print(one_line(error.__cause__ or error).partition(". ")[0])
        return 1
    return 0


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


# --- the watchdog -------------------------------------------------------------------------------------------


def watched(folder: str) -> subprocess.Popen[bytes]:
    """Start the watchdog of a Ray in `folder`. In a session of its own, Ctrl-C does not reach it."""
    return subprocess.Popen(
        here("watch", folder),
        env=with_our_path(),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def dismiss(watchdog: subprocess.Popen[bytes]) -> None:
    """Have the watchdog do its work now, and wait until it is done."""
    assert watchdog.stdin is not None
    # A word, since the pipe's end may stay open in a process that was forked from this one.
    with contextlib.suppress(BrokenPipeError):
        watchdog.stdin.write(b"close")
        watchdog.stdin.close()
    watchdog.wait()


def watch(folder: str, parent: int) -> None:
    """Wait for the parent's word or end; then end all that carries the folder's mark, and remove the folder."""
    word: bytes | None = None
    while word is None and os.getppid() == parent:
        if select.select([sys.stdin], [], [], 1.0)[0]:
            word = os.read(0, 5)
    end_marked(folder, QUIET_AFTER_CLOSE if word else QUIET_AFTER_KILL)
    shutil.rmtree(folder, ignore_errors=True)


def end_marked(folder: str, quiet: float) -> None:
    """Kill the processes that carry a mark, again and again until there has been none for a while."""
    end = time.monotonic() + END_SECONDS
    last_seen = time.monotonic()
    while time.monotonic() < min(end, last_seen + quiet):
        for pid in marked_processes(folder):
            last_seen = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def marked_processes(folder: str) -> list[int]:
    """The living processes with a mark. Only Linux shows them; elsewhere Ray's own reaper has to do."""
    mark = f"{MARK}={folder}\0".encode()
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


# --- other processes ----------------------------------------------------------------------------------------


def python_path() -> str:
    """Where this process finds modules, beyond what every Python here has of itself."""
    common = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    ours = [str(Path(__file__).parents[2]), *map(os.path.abspath, sys.path)]
    return os.pathsep.join(dict.fromkeys(path for path in ours if not path.startswith(common)))


def with_our_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": python_path()}


def here(*arguments: str) -> list[str]:
    """The command that runs this file in another process."""
    return [sys.executable, "-m", "fedwild.engines.ray_cluster", *arguments, str(os.getpid())]


if __name__ == "__main__":
    task, subject, parent = sys.argv[1:]
    if task == "join":
        sys.exit(try_to_join(subject))
    watch(subject, int(parent))
