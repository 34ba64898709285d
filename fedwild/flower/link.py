"""The way to the sites: a SuperLink of our own behind a gate, or one that is there, and the app that it runs."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedwild.config import EngineSettings
from fedwild.errors import UserError
from fedwild.flower.app import write_app
from fedwild.flower.courier import Courier, Node, accept, listen
from fedwild.flower.keys import check_certificates, registered_keys
from fedwild.flower.processes import (
    Child,
    bound,
    call,
    check_host,
    free_port,
    last_words,
    reachable,
    split_address,
    wait_for_port,
)
from fedwild.temporary import temporary_folder

CONNECTION = "coordinator"
DEFAULT_LISTEN = "127.0.0.1:8443"
START_SECONDS = 120.0
REGISTER_SECONDS = 120.0
Listener = Callable[[dict[str, Any]], None]


@contextlib.contextmanager
def connected(settings: EngineSettings, listener: Listener) -> Iterator[Courier]:
    """A courier to whoever is at the SuperLink; everything that was started for it ends afterwards."""
    with contextlib.ExitStack() as cleanup:
        home = cleanup.enter_context(temporary_folder())
        certificates = None if settings.certificates is None else Path(settings.certificates)
        if certificates is not None:
            check_certificates(certificates)
        children: list[Child] = []
        if settings.superlink is not None:
            address = existing(settings.superlink)
            write_connection(home, address, certificates)
        else:
            wanted = settings.listen or DEFAULT_LISTEN
            address, children = own_superlink(cleanup, home, wanted, certificates, listener)
        server = listen(home / "desk")
        cleanup.callback(server.close)
        app = home / "app"
        write_app(app, "", desk=str(home / "desk"))
        runner = Child(["flwr", "run", str(app), CONNECTION], home / "run.log", home)
        cleanup.callback(runner.stop)

        def check() -> None:
            if runner.code not in (None, 0):
                raise UserError(f"the SuperLink at {address} does not start our app: {reason_in(runner)}")

        courier = accept(server, START_SECONDS, check)
        cleanup.callback(courier.close)
        yield WatchedCourier(courier, children)


class WatchedCourier:
    """A courier that says so when a program is gone without which no site can be reached."""

    def __init__(self, courier: Courier, children: Sequence[Child]) -> None:
        self._courier, self._children = courier, children
        self.send, self.collect = courier.send, courier.collect

    def nodes(self) -> list[Node]:
        for child in self._children:
            if child.code is not None:
                raise UserError(
                    f"{child.name} has ended ({last_words(child)}): `fedwild resume` goes on from the last finished "
                    "round."
                )
        return self._courier.nodes()


def existing(address: str) -> str:
    """A SuperLink that somebody else started on this machine."""
    host, port = split_address(address, "engine.superlink")
    check_host(host, f"engine.superlink = {address!r}")
    if not reachable(host, port):
        raise UserError(f"engine.superlink = {address!r}: nobody answers there. Without it, one is started here.")
    return address


def own_superlink(
    cleanup: contextlib.ExitStack, home: Path, address: str, certificates: Path | None, listener: Listener
) -> tuple[str, list[Child]]:
    """Start a SuperLink on the loopback interface and a gate to it where sites look for it; its address, and both."""
    host, _ = split_address(address, "engine.listen")
    if certificates is None and host not in ("127.0.0.1", "localhost", "::1"):
        raise UserError(
            f"engine.listen = {address!r} without TLS is not allowed: `fedwild flower keys DIR --host HOST --site "
            "NAME` makes certificates, and --certificates DIR uses them."
        )
    door = cleanup.enter_context(bound(address, "engine.listen"))
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
        # Before the gate opens, or a site that waits for it would be refused.
        register(home, certificates)
    gate = start_gate(cleanup, home, door, inner, certificates)
    listener({"event": "listening", "address": address, "tls": certificates is not None})
    return f"127.0.0.1:{inner}", [superlink, gate]


def start_gate(
    cleanup: contextlib.ExitStack, home: Path, door: socket.socket, inner: int, certificates: Path | None
) -> Child:
    """Let sites in, and nobody else."""
    scheme = "http" if certificates is None else "https"
    command = [sys.executable, "-m", "fedwild.flower.gate", "--door", str(door.fileno())]
    command += ["--superlink", f"{scheme}://127.0.0.1:{inner}"]
    if certificates is not None:
        command += ["--certificate", str(certificates / "server.pem"), "--key", str(certificates / "server.key")]
        command += ["--authority", str(certificates / "ca.pem")]
    child = Child(command, home / "gate.log", home, [door.fileno()])
    cleanup.callback(child.stop)
    host, port = door.getsockname()[:2]
    wait_for_port({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port, child)
    # The gate has it now; held here too, it would let sites in that nobody answers when the gate is gone.
    door.close()
    return child


def write_connection(home: Path, address: str, certificates: Path | None) -> None:
    """Tell Flower's command line where the SuperLink is."""
    secure = "insecure = true" if certificates is None else f'root-certificates = "{certificates.resolve() / "ca.pem"}"'
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{secure}\n'
    (home / "config.toml").write_text(text, encoding="utf-8")


def register(home: Path, certificates: Path) -> None:
    """Register the sites' public keys under their names: only they may connect, each as itself."""
    keys = registered_keys(certificates)
    if not keys:
        raise UserError(
            f"engine.certificates = {str(certificates)!r} has no site's key: `fedwild flower keys {certificates} "
            "--site NAME` makes one."
        )
    pairs = [text for name, path in keys.items() for text in (name, str(path))]
    command = [sys.executable, "-m", "fedwild.flower.registrar", CONNECTION, *pairs]
    done = call(command, home, REGISTER_SECONDS + len(keys))
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise UserError(words[-1] if words else f"the sites' keys cannot be registered: exit code {done.returncode}")


def reason_in(child: Child) -> str:
    """Why `flwr run` failed, from what it said."""
    said = child.said()
    for sign, sentence in (
        ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by engine.certificates' authority"),
        ("SSL", "it does not speak TLS as engine.certificates says"),
        ("Connection refused", "nobody answers there"),
    ):
        if sign in said:
            return f"{sentence}."
    return last_words(child)
