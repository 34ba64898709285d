"""`fedwild site`: a site server with this site's data, and Flower's SuperNode, which connects to the coordinator."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedwild.core.errors import BadReply, UserError, explain_os_errors
from fedwild.core.memory import limit_memory
from fedwild.core.temporary import temporary_folder
from fedwild.core.trust import only_in_process
from fedwild.data import DataSettings, load
from fedwild.engines.threads import single_thread
from fedwild.sites.envelope import Closed, read, write
from fedwild.sites.expiry import certificate_validity, expiry_warning
from fedwild.sites.policy import read_policy
from fedwild.sites.processes import Child, free_port, last_line, split_address, unresolved
from fedwild.sites.site_keys import check_site_key, check_site_name
from fedwild.sites.site_server import NOT_ALLOWED, SiteServer
from fedwild.sites.transport import listen

CONNECTED = "SuperNode ID:"
"""Flower's SuperNode prints this when it is connected."""
REJECTED = "[code:"
"""Begins the SuperLink's reason when it rejects a node."""
GIVEN_UP = "Giving up reconnection"
"""A SuperNode prints this when it stops trying, although its process does not end."""
CUT_OFF = re.compile(r"Client error '4\d\d[^\n]*/pull-messages'")
"""A SuperNode prints this when its requests are rejected, because its key is not valid any more. It does not end."""
UNVERIFIED = "FAB verification failed"
"""A SuperNode prints this when it refuses an app."""
RESTART_SECONDS = 3.0
RECONNECT_SECONDS = 120.0
"""How long a site tries to reconnect: after a kill, it counts as connected for about a minute and is rejected."""
CONNECTED_FILE = "connected"
"""This file in a site's folder shows that a coordinator has admitted the site before."""
Notify = Callable[[str], None]


@dataclass(frozen=True)
class SiteOptions:
    """The options of `fedwild site`."""

    superlink: str
    data: str
    name: str
    key: Path | None = None
    authority: Path | None = None
    """The certificate of the authority that signed the coordinator's certificate; None for no TLS."""
    folder: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    wait: float = 60.0
    """Seconds to wait for the coordinator at the start."""
    policy: Path | None = None
    """The site's policy; None for the default."""


def run_site(options: SiteOptions, notify: Notify) -> None:
    """Serve until interrupted. Wrong options are rejected before anything is started."""
    check_options(options)
    policy = read_policy(options.policy)
    folder = (options.folder or default_folder(options.name)).resolve()
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(locked(folder))
        single_thread()
        # A job that needs more memory than there is fails with an error, and the site keeps running.
        limit_memory()
        cleanup.enter_context(only_in_process(policy.import_paths, NOT_ALLOWED))
        terminal = sys.stdin if sys.stdin is not None and sys.stdin.isatty() else None
        about = (options.name, options.data, folder, options.labels, options.device, notify)
        server = SiteServer(*about, policy=policy, terminal=terminal)
        start_log(server)
        home = cleanup.enter_context(temporary_folder())
        warn_of_expiry(options, notify)
        check_coordinator(options, notify)
        serve(server, home / "socket")
        notify(f"site {options.name} with {options.data}; state and audit log in {folder}")
        notify(f"policy ({options.policy or 'default'}): {policy.describe_values()}")
        stay_connected(options, home, folder / "supernode.log", notify)


def start_log(server: SiteServer) -> None:
    """Record in the audit log that the site starts, and with which policy."""
    with explain_os_errors(f"the audit log {str(server.audit.path)!r} cannot be written"):
        server.audit.append({"request": {"kind": "start"}, "site": server.name, "policy": server.policy.digest()})


def check_options(options: SiteOptions) -> None:
    """Reject an invalid name, missing files, and data that cannot be read."""
    check_site_name(options.name, "--name")
    for option, path in (("--key", options.key), ("--ca", options.authority)):
        if path is not None and not path.is_file():
            raise UserError(f"{option} {str(path)!r}: the file does not exist.")
    if options.key is not None and options.authority is None:
        raise UserError(f"--key {str(options.key)!r} needs TLS: give the authority's certificate with --ca.")
    if options.key is not None:
        check_site_key(options.key)
    split_address(options.superlink, "--superlink")
    try:
        load(DataSettings(name=options.data), labels=options.labels)
    except UserError as error:
        # The coordinator's settings may give images of different sizes one shape.
        if "data.size" not in str(error):
            raise UserError(*(problem.replace("data.name = ", "--data ") for problem in error.problems)) from error


def default_folder(name: str) -> Path:
    """Return the default folder for a site's identity and state."""
    return default_parent() / name


def default_parent() -> Path:
    """Return the folder that holds the default folders of this user's sites."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "fedwild" / "sites"


def site_folders(folder: Path | None) -> list[Path]:
    """Return a site's folder, or without one the default folders of all sites of this user."""
    if folder is None:
        return sorted(path for path in default_parent().glob("*") if path.is_dir())
    if not folder.is_dir():
        raise UserError(f"--folder {str(folder)!r} does not exist.")
    return [folder.resolve()]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Prevent a second process from running as the same site."""
    with explain_os_errors(f"--folder {str(folder)!r} cannot be used"):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        lock = open(folder / ".lock", "w")  # noqa: SIM115  (held while the site runs)
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"--folder {str(folder)!r} is in use by another process: check whether this site is already running."
            ) from error
        yield


def warn_of_expiry(options: SiteOptions, notify: Notify) -> None:
    """Refuse an expired certificate of the authority, and warn if it expires soon."""
    if options.authority is not None:
        what = f"--ca {str(options.authority)!r}"
        _, expires = certificate_validity(options.authority, what)
        warning = expiry_warning(what, expires, "ask the coordinator for a new one")
        if warning is not None:
            notify(f"warning: {warning}")


def check_coordinator(options: SiteOptions, notify: Notify) -> None:
    """Wait until the coordinator answers. Reject a wrong certificate at once."""
    end, waiting = time.monotonic() + options.wait, False
    while (problem := connection_problem(options)) is not None:
        if time.monotonic() > end:
            raise UserError(problem)
        if not waiting:
            notify(f"waiting for the coordinator at {options.superlink}")
            waiting = True
        time.sleep(0.5)


def connection_problem(options: SiteOptions) -> str | None:
    """Return why the coordinator does not answer yet, or None if it does. Raises if waiting cannot help."""
    host, port = split_address(options.superlink, "--superlink")
    where = f"--superlink {options.superlink!r}"
    try:
        with socket.create_connection((host, port), 5.0) as plain:
            if options.authority is None:
                return _plain_problem(plain, where)
            context = ssl.create_default_context(cafile=str(options.authority))
            with context.wrap_socket(plain, server_hostname=host):
                return None
    except ssl.SSLCertVerificationError as error:
        authority = f"--ca {str(options.authority)!r}"
        raise UserError(f"{where}: its certificate does not pass {authority}: {error.verify_message}.") from error
    except ssl.SSLError as error:
        raise UserError(f"{where} does not use TLS, or --ca is not a certificate ({error.reason}).") from error
    except (socket.gaierror, UnicodeError):
        # Worth waiting for: a machine that has just started may have no network yet.
        return unresolved(host, where)
    except OSError:
        return f"{where} does not answer: check that the coordinator runs and that its port is open."


def _plain_problem(connection: socket.socket, where: str) -> str | None:
    """Check that a coordinator without TLS answers an HTTP request with plain HTTP."""
    connection.settimeout(5.0)
    connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
    try:
        answer = connection.recv(5)
    except TimeoutError:
        return f"{where} accepts connections but does not answer: check that it is the coordinator."
    except OSError:
        answer = b""
    if not answer.startswith(b"HTTP"):
        raise UserError(f"{where} requires TLS: give the authority's certificate with --ca.")
    return None


def serve(server: SiteServer, path: Path) -> None:
    """Answer requests at a socket, one after the other, in a background thread."""
    listening = listen(path)

    def answer_requests() -> None:
        while True:
            connection, _ = listening.accept()
            try:
                with connection:
                    write(connection, server.answer(read(connection)))
            except (OSError, Closed, BadReply):
                continue
            except Exception as problem:
                server.notify(f"a request could not be answered: {type(problem).__name__}: {problem}")

    threading.Thread(target=answer_requests, daemon=True, name="site-server").start()


def stay_connected(options: SiteOptions, home: Path, log: Path, notify: Notify) -> None:
    """Keep a SuperNode running. It is restarted when the coordinator was, and ends with us.

    A site that was admitted before keeps trying for a while when it is rejected: it may count as still connected, or
    its operator may be replacing its key.
    """
    was_connected, connected_file = False, log.with_name(CONNECTED_FILE)
    rejected_since: float | None = None
    while True:
        log.unlink(missing_ok=True)
        child = Child(supernode_command(options, home), log, home)
        try:
            if connects(child):
                was_connected, rejected_since = True, None
                connected_file.touch()
                notify(f"connected to {options.superlink}")
                watch(child, notify)
        finally:
            child.stop()
        reason = rejection(child.output())
        if reason is None and not was_connected:
            raise UserError(f"Flower's SuperNode did not connect to {options.superlink}: {last_line(child)}")
        if reason is not None:
            rejected_since = rejected_since or time.monotonic()
            patience = RECONNECT_SECONDS if connected_file.exists() else 0.0
            if time.monotonic() >= rejected_since + patience:
                raise UserError(
                    f"--superlink {options.superlink!r} rejected this site ({reason}): the public part of --key must "
                    f"be in the coordinator's --certificates folder, as sites/{options.name}.pub, neither revoked nor "
                    "expired."
                )
        notify(
            "connection lost; trying again"
            if reason is None
            else f"rejected by the coordinator ({reason}); trying again"
        )
        time.sleep(RESTART_SECONDS)


def rejection(output: str) -> str | None:
    """Return the reason why the coordinator rejected a SuperNode, or None if it did not."""
    return next((line.strip()[:200] for line in output.splitlines() if REJECTED in line), None)


def watch(child: Child, notify: Notify) -> None:
    """Wait until a connected SuperNode ends, gives up or is cut off. Tell the operator if it refuses an app."""
    refused = False
    while child.code is None and GIVEN_UP not in (tail := child.output_tail()) and not CUT_OFF.search(tail):
        if UNVERIFIED in tail and not refused:
            notify("refused: the coordinator sent an app whose code is not that of this version of fedwild")
            refused = True
        time.sleep(1.0)


def connects(child: Child) -> bool:
    """Wait until a SuperNode is connected (True) or has ended (False)."""
    while child.code is None and GIVEN_UP not in child.output_tail():
        if CONNECTED in child.output():
            return True
        time.sleep(0.2)
    return False


def supernode_command(options: SiteOptions, home: Path) -> list[str]:
    """Return the command of this site's SuperNode."""
    tls = ["--insecure"] if options.authority is None else ["--root-certificates", str(options.authority.resolve())]
    key = [] if options.key is None else ["--auth-supernode-private-key", str(options.key.resolve())]
    return [
        *(sys.executable, "-m", "fedwild.sites.supernode", "--superlink", options.superlink, *tls, *key),
        *("--host", "127.0.0.1", "--port", str(free_port())),
        *("--node-config", f"socket={json.dumps(str(home / 'socket'))}"),
    ]
