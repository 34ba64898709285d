"""`fedwild site`: a desk with this site's data, and beside it Flower's SuperNode, which connects to the coordinator."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedwild.data import DataSettings, load
from fedwild.errors import BadReply, UserError
from fedwild.flower.courier import listen
from fedwild.flower.desk import Desk
from fedwild.flower.keys import SITE_NAME, check_site_key
from fedwild.flower.letters import Closed, read, write
from fedwild.flower.processes import Child, free_port, last_words, split_address
from fedwild.protocol import single_thread
from fedwild.temporary import temporary_folder

CONNECTED = "SuperNode ID:"
"""What Flower's SuperNode says when it is connected."""
REFUSED = "[code:"
"""Before what the SuperLink says if it does not let a node in."""
GIVEN_UP = "Giving up reconnection"
"""What it says when it will not try any more, though it does not end."""
RESTART_SECONDS = 3.0
STILL_THERE_SECONDS = 120.0
"""A site that was killed counts as connected for about a minute, and cannot connect a second time before."""
WAS_HERE = "connected"
"""A file in a site's folder: the coordinator has let it in before."""
Tell = Callable[[str], None]


@dataclass(frozen=True)
class SiteOptions:
    """What an operator says of a site."""

    superlink: str
    data: str
    name: str
    key: Path | None = None
    authority: Path | None = None
    """The certificate of the authority that signed the coordinator's; without it, no TLS."""
    folder: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    wait: float = 60.0
    """Seconds to wait for the coordinator to be there, at the beginning."""


def run_site(options: SiteOptions, tell: Tell) -> None:
    """Serve until interrupted. Whatever is wrong with the input shows at once, before anything is started."""
    check_options(options)
    folder = (options.folder or default_folder(options.name)).resolve()
    with contextlib.ExitStack() as cleanup:
        cleanup.enter_context(locked(folder))
        single_thread()
        desk = Desk(options.name, options.data, folder, options.labels, options.device, tell)
        home = cleanup.enter_context(temporary_folder())
        check_coordinator(options, tell)
        serve(desk, home / "desk")
        tell(f"site {options.name} with {options.data}; its state is kept in {folder}")
        stay_connected(options, home, folder / "supernode.log", tell)


def check_options(options: SiteOptions) -> None:
    """Refuse a name that cannot be one, files that are not there, and data that cannot be read."""
    if not SITE_NAME.fullmatch(options.name) or options.name in {".", ".."}:
        raise UserError(f"--name {options.name!r} is not allowed: letters, digits, '.', '_', '+' and '-' only.")
    for option, path in (("--key", options.key), ("--ca", options.authority)):
        if path is not None and not path.is_file():
            raise UserError(f"{option} {str(path)!r}: there is no such file.")
    if options.key is not None and options.authority is None:
        raise UserError(f"--key {str(options.key)!r} needs TLS: give the authority's certificate with --ca.")
    if options.key is not None:
        check_site_key(options.key)
    split_address(options.superlink, "--superlink")
    try:
        load(DataSettings(name=options.data))
    except UserError as error:
        # The coordinator's settings may bring images of different sizes to one.
        if "data.size" not in str(error):
            raise UserError(*(problem.replace("data.name=", "--data ") for problem in error.problems)) from error


def default_folder(name: str) -> Path:
    """Where a site's identity and state are, if nobody says otherwise."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "fedwild" / "sites" / name


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second process from being the same site."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        lock = open(folder / ".lock", "w")  # noqa: SIM115  (held as long as the site runs)
    except OSError as error:
        raise UserError(f"--folder {str(folder)!r} cannot be used: {error.strerror or error}.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(f"--folder {str(folder)!r} is in use by another process: is this site running?") from error
        yield


def check_coordinator(options: SiteOptions, tell: Tell) -> None:
    """Wait until the coordinator answers; refuse a certificate that is not the right one."""
    end, waiting = time.monotonic() + options.wait, False
    while (problem := trouble_at(options)) is not None:
        if time.monotonic() > end:
            raise UserError(problem)
        if not waiting:
            tell(f"waiting for the coordinator at {options.superlink}")
            waiting = True
        time.sleep(0.5)


def trouble_at(options: SiteOptions) -> str | None:
    """Why nobody can be spoken to at the address yet; what waiting cannot mend is raised."""
    host, port = split_address(options.superlink, "--superlink")
    where = f"--superlink {options.superlink!r}"
    try:
        with socket.create_connection((host, port), 5.0) as plain:
            if options.authority is None:
                return _plain_trouble(plain, where)
            context = ssl.create_default_context(cafile=str(options.authority))
            with context.wrap_socket(plain, server_hostname=host):
                return None
    except ssl.SSLCertVerificationError as error:
        whose = f"--ca {str(options.authority)!r}"
        raise UserError(
            f"{where}: its certificate is not one that {whose} vouches for: {error.verify_message}."
        ) from error
    except ssl.SSLError as error:
        raise UserError(f"{where}: it does not speak TLS, or --ca is no certificate ({error.reason}).") from error
    except (socket.gaierror, UnicodeError):
        # Waited for as well: a machine that has just been started may have no network yet.
        return f"{where}: the name {host!r} cannot be found. Is it spelt right, and is there a network?"
    except OSError:
        return f"{where}: nobody answers there. Is the coordinator running, and is the port open?"


def _plain_trouble(connection: socket.socket, where: str) -> str | None:
    """Without TLS, the answer to a plain question must be plain."""
    connection.settimeout(5.0)
    connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
    try:
        answer = connection.recv(5)
    except TimeoutError:
        return f"{where}: whoever is there does not answer. Is it the coordinator?"
    except OSError:
        answer = b""
    if not answer.startswith(b"HTTP"):
        raise UserError(f"{where}: it wants TLS. Give the authority's certificate with --ca.")
    return None


def serve(desk: Desk, path: Path) -> None:
    """Answer letters at a socket, one after the other, in a thread of its own."""
    server = listen(path)

    def attend() -> None:
        while True:
            connection, _ = server.accept()
            try:
                with connection:
                    write(connection, desk.answer(read(connection)))
            except (OSError, Closed, BadReply):
                continue
            except Exception as problem:
                desk.tell(f"a letter could not be answered: {type(problem).__name__}: {problem}")

    threading.Thread(target=attend, daemon=True, name="desk").start()


def stay_connected(options: SiteOptions, home: Path, log: Path, tell: Tell) -> None:
    """Keep a SuperNode running: it is started anew when the coordinator was, and ends with us."""
    seen_once, was_here = False, log.with_name(WAS_HERE)
    give_up = time.monotonic() + (STILL_THERE_SECONDS if was_here.exists() else 0.0)
    while True:
        log.unlink(missing_ok=True)
        child = Child(supernode_command(options, home), log, home)
        try:
            if connects(child):
                seen_once = True
                was_here.touch()
                tell(f"connected to {options.superlink}")
                while child.code is None and GIVEN_UP not in child.said_last():
                    time.sleep(1.0)
        finally:
            child.stop()
        said = child.said()
        if REFUSED in said and not seen_once and time.monotonic() < give_up:
            tell("the coordinator does not let us in yet, as if we were still connected; trying again")
            time.sleep(RESTART_SECONDS)
            continue
        if REFUSED in said and not seen_once:
            words = next(line for line in said.splitlines() if REFUSED in line).strip()[:200]
            raise UserError(
                f"--superlink {options.superlink!r} does not let this site in ({words}): the coordinator must have the "
                f"public part of its --key in the folder of its --certificates, as sites/{options.name}.pub."
            )
        if not seen_once:
            raise UserError(f"Flower's SuperNode did not connect to {options.superlink}: {last_words(child)}")
        tell("the connection is lost; trying again")
        time.sleep(RESTART_SECONDS)


def connects(child: Child) -> bool:
    """Wait until a SuperNode is connected, or has ended."""
    while child.code is None and GIVEN_UP not in child.said_last():
        if CONNECTED in child.said():
            return True
        time.sleep(0.2)
    return False


def supernode_command(options: SiteOptions, home: Path) -> list[str]:
    """Flower's SuperNode for this site."""
    tls = ["--insecure"] if options.authority is None else ["--root-certificates", str(options.authority.resolve())]
    key = [] if options.key is None else ["--auth-supernode-private-key", str(options.key.resolve())]
    return [
        *("flower-supernode", "--superlink", options.superlink, *tls, *key),
        *("--host", "127.0.0.1", "--port", str(free_port())),
        *("--node-config", f"desk={json.dumps(str(home / 'desk'))}"),
    ]
