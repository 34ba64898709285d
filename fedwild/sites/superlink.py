"""The connection to the sites: our own SuperLink behind a proxy, or an existing one, and the app that it runs."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.core.temporary import temporary_folder
from fedwild.runs.events import Listener, ignore_event
from fedwild.runs.settings import EngineSettings
from fedwild.sites.app import write_app
from fedwild.sites.keys import check_certificates
from fedwild.sites.processes import (
    Child,
    bind,
    check_host,
    free_port,
    is_reachable,
    last_line,
    split_address,
    wait_for_port,
)
from fedwild.sites.site_keys import registered_files
from fedwild.sites.transport import Node, Transport, accept, listen

CONNECTION = "coordinator"
"""The SuperLink's name in Flower's configuration file."""
DEFAULT_LISTEN = "127.0.0.1:8443"
START_SECONDS = 120.0
REGISTER_SECONDS = 120.0
READY, CHANGE = "keys are registered", "key: "
"""What registration.py prints once all keys are registered, and how the line of a later change begins."""


@contextlib.contextmanager
def open_transport(settings: EngineSettings, listener: Listener) -> Iterator[Transport]:
    """Yield a transport to the nodes of the SuperLink. Everything that was started for it ends afterwards."""
    with contextlib.ExitStack() as cleanup:
        home = cleanup.enter_context(temporary_folder())
        certificates = None if settings.certificates is None else Path(settings.certificates)
        if certificates is not None:
            for warning in check_certificates(certificates):
                listener({"event": "warning", "text": warning})
        children: list[Child] = []
        if settings.superlink is not None:
            address = existing_superlink(settings.superlink)
            write_connection(home, address, certificates)
        else:
            wanted = settings.listen or DEFAULT_LISTEN
            address, children = own_superlink(cleanup, home, wanted, certificates, listener)
        server = listen(home / "socket")
        cleanup.callback(server.close)
        app = home / "app"
        write_app(app, "", socket=str(home / "socket"))
        runner = Child(["flwr", "run", str(app), CONNECTION], home / "run.log", home)
        cleanup.callback(runner.stop)

        def check() -> None:
            if runner.code not in (None, 0):
                raise UserError(f"the SuperLink at {address} does not start the app: {failure_of(runner)}")

        transport = accept(server, START_SECONDS, check)
        cleanup.callback(transport.close)
        yield WatchedTransport(transport, children, listener)


class WatchedTransport:
    """A transport that fails as soon as one of the programs that it depends on has ended, and shows changes of keys."""

    def __init__(self, transport: Transport, children: Sequence[Child], listener: Listener = ignore_event) -> None:
        self._transport, self._children, self._listener = transport, children, listener
        self.send, self.collect = transport.send, transport.collect
        self._shown = 0

    def nodes(self) -> list[Node]:
        for child in self._children:
            if child.code is not None:
                raise UserError(
                    f"{child.name} has ended ({last_line(child)}): `fedwild resume` continues after the last completed "
                    "round."
                )
        self._show_changes()
        return self._transport.nodes()

    def _show_changes(self) -> None:
        """Show the changes of keys that were not shown yet."""
        lines = [line for child in self._children for line in child.output().splitlines() if line.startswith(CHANGE)]
        for line in lines[self._shown :]:
            self._listener({"event": "note", "text": line.removeprefix(CHANGE)})
        self._shown = len(lines)


def existing_superlink(address: str) -> str:
    """Check that the SuperLink at `engine.superlink` can be reached, and return its address."""
    setting = f"engine.superlink = {address!r}"
    host, port = split_address(address, "engine.superlink")
    check_host(host, setting)
    if not is_reachable(host, port):
        raise UserError(f"{setting} does not answer. Omit it to start a SuperLink on this machine.")
    return address


def own_superlink(
    cleanup: contextlib.ExitStack, home: Path, address: str, certificates: Path | None, listener: Listener
) -> tuple[str, list[Child]]:
    """Start a SuperLink on the loopback interface and a proxy to it at `address`.

    Returns the SuperLink's own address and the programs.
    """
    host, _ = split_address(address, "engine.listen")
    if certificates is None and host not in ("127.0.0.1", "localhost", "::1"):
        raise UserError(
            f"engine.listen = {address!r} without TLS is not allowed: create certificates with `fedwild flower keys "
            "DIR --host HOST --site NAME` and use them with --certificates DIR."
        )
    bound = cleanup.enter_context(bind(address, "engine.listen"))
    inner = free_port()
    command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(inner)]
    tls = ["--insecure"]
    if certificates is not None:
        tls = [
            *("--ssl-ca-certfile", str(certificates / "ca.pem")),
            *("--ssl-certfile", str(certificates / "server.pem")),
            *("--ssl-keyfile", str(certificates / "server.key")),
            "--enable-supernode-auth",
        ]
    superlink = Child([*command, *tls], home / "superlink.log", home)
    cleanup.callback(superlink.stop)
    wait_for_port("127.0.0.1", inner, superlink)
    write_connection(home, f"127.0.0.1:{inner}", certificates)
    children = [superlink]
    if certificates is not None:
        # Before the proxy starts; otherwise a waiting site would be rejected.
        children.append(start_registration(cleanup, home, certificates))
    proxy = start_proxy(cleanup, home, bound, inner, certificates)
    listener({"event": "listening", "address": address, "tls": certificates is not None})
    return f"127.0.0.1:{inner}", [*children, proxy]


def start_proxy(
    cleanup: contextlib.ExitStack, home: Path, bound: socket.socket, inner: int, certificates: Path | None
) -> Child:
    """Start the proxy on a bound socket; `inner` is the SuperLink's port."""
    scheme = "http" if certificates is None else "https"
    command = [sys.executable, "-m", "fedwild.sites.proxy", "--socket", str(bound.fileno())]
    command += ["--superlink", f"{scheme}://127.0.0.1:{inner}"]
    if certificates is not None:
        command += ["--certificates", str(certificates)]
    child = Child(command, home / "proxy.log", home, [bound.fileno()])
    cleanup.callback(child.stop)
    host, port = bound.getsockname()[:2]
    wait_for_port({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, child)
    # The proxy has its own copy. If this one stayed open, sites could still connect after the proxy's end.
    bound.close()
    return child


def write_connection(home: Path, address: str, certificates: Path | None) -> None:
    """Write the SuperLink's address into Flower's configuration file."""
    secure = "insecure = true" if certificates is None else f'root-certificates = "{certificates.resolve() / "ca.pem"}"'
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{secure}\n'
    (home / "config.toml").write_text(text, encoding="utf-8")


def start_registration(cleanup: contextlib.ExitStack, home: Path, certificates: Path) -> Child:
    """Register the sites' public keys under their names, and keep following the folder.

    Only these sites may connect, each under its own name.
    """
    if not registered_files(certificates):
        raise UserError(
            f"engine.certificates = {str(certificates)!r} has no site keys: create one with `fedwild flower keys "
            f"{certificates} --site NAME`."
        )
    command = [sys.executable, "-m", "fedwild.sites.registration", CONNECTION, str(certificates)]
    child = Child(command, home / "registration.log", home)
    cleanup.callback(child.stop)
    end = time.monotonic() + REGISTER_SECONDS + len(registered_files(certificates))
    while READY not in child.output():
        if child.code is not None or time.monotonic() > end:
            raise UserError(last_line(child))
        time.sleep(0.1)
    return child


def failure_of(child: Child) -> str:
    """Return the reason why `flwr run` failed, from its output."""
    output = child.output()
    for sign, sentence in (
        ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by the authority in engine.certificates"),
        ("SSL", "it does not use TLS as engine.certificates requires"),
        ("Connection refused", "it does not answer"),
    ):
        if sign in output:
            return f"{sentence}."
    return last_line(child)
