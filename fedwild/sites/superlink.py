"""The connection to the sites: our own SuperLink behind a proxy, or an existing one, and the app that it runs."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.core.temporary import temporary_folder
from fedwild.runs.events import Listener
from fedwild.runs.settings import EngineSettings
from fedwild.sites.app import write_app
from fedwild.sites.keys import check_certificates, registered_keys
from fedwild.sites.processes import (
    Child,
    bind,
    check_host,
    free_port,
    is_reachable,
    last_line,
    run_program,
    split_address,
    wait_for_port,
)
from fedwild.sites.transport import Node, Transport, accept, listen

CONNECTION = "coordinator"
"""The SuperLink's name in Flower's configuration file."""
DEFAULT_LISTEN = "127.0.0.1:8443"
START_SECONDS = 120.0
REGISTER_SECONDS = 120.0


@contextlib.contextmanager
def open_transport(settings: EngineSettings, listener: Listener) -> Iterator[Transport]:
    """Yield a transport to the nodes of the SuperLink. Everything that was started for it ends afterwards."""
    with contextlib.ExitStack() as cleanup:
        home = cleanup.enter_context(temporary_folder())
        certificates = None if settings.certificates is None else Path(settings.certificates)
        if certificates is not None:
            check_certificates(certificates)
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
        yield WatchedTransport(transport, children)


class WatchedTransport:
    """A transport that fails as soon as one of the programs that it depends on has ended."""

    def __init__(self, transport: Transport, children: Sequence[Child]) -> None:
        self._transport, self._children = transport, children
        self.send, self.collect = transport.send, transport.collect

    def nodes(self) -> list[Node]:
        for child in self._children:
            if child.code is not None:
                raise UserError(
                    f"{child.name} has ended ({last_line(child)}): `fedwild resume` continues after the last completed "
                    "round."
                )
        return self._transport.nodes()


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

    Returns the SuperLink's own address and both programs.
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
    if certificates is not None:
        # Before the proxy starts; otherwise a waiting site would be rejected.
        register(home, certificates)
    proxy = start_proxy(cleanup, home, bound, inner, certificates)
    listener({"event": "listening", "address": address, "tls": certificates is not None})
    return f"127.0.0.1:{inner}", [superlink, proxy]


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


def register(home: Path, certificates: Path) -> None:
    """Register the sites' public keys under their names: only these sites may connect, each under its own name."""
    keys = registered_keys(certificates)
    if not keys:
        raise UserError(
            f"engine.certificates = {str(certificates)!r} has no site keys: create one with `fedwild flower keys "
            f"{certificates} --site NAME`."
        )
    pairs = [text for name, path in keys.items() for text in (name, str(path))]
    command = [sys.executable, "-m", "fedwild.sites.registration", CONNECTION, *pairs]
    done = run_program(command, home, REGISTER_SECONDS + len(keys))
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise UserError(lines[-1] if lines else f"the sites' keys cannot be registered: exit code {done.returncode}")


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
