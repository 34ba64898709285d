"""How envelopes get from the coordinator to nodes and back.

Flower's ServerApp runs in a process that the SuperLink starts. It only relays envelopes for the coordinator, which is
the process that the user started, over a socket that only this user can open.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedwild.core.errors import BadReply, UserError
from fedwild.sites.envelope import Closed, Envelope, read, write

CONNECTION_LOST = "the connection to the SuperLink is lost: `fedwild resume` continues after the last completed round."


@dataclass(frozen=True)
class Node:
    """A site's connection as Flower sees it. Without a key, every connection gets a new random id."""

    id: int
    name: str = ""
    """The name that its key is registered for, if it has one."""


@dataclass(frozen=True)
class Delivery:
    """What came back for an envelope: the answer, or the reason why there is none."""

    id: str
    envelope: Envelope | None = None
    error: str | None = None


class Transport(Protocol):
    """Sends envelopes to nodes. A node answers each envelope once."""

    def nodes(self) -> list[Node]:
        """Return the nodes that are connected now."""
        ...

    def send(self, node: int, envelope: Envelope) -> str:
        """Send an envelope and return the id under which its answer can be collected."""
        ...

    def collect(self, ids: Iterable[str]) -> list[Delivery]:
        """Return the answers that have arrived for these ids, each once."""
        ...


class SocketTransport:
    """The coordinator's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def nodes(self) -> list[Node]:
        reply = self._request(Envelope({"request": "nodes"}))
        return [Node(int(row["id"]), str(row["name"])) for row in reply.head["nodes"]]

    def send(self, node: int, envelope: Envelope) -> str:
        head = {"request": "send", "node": node, "head": envelope.head_text()}
        return str(self._request(Envelope(head, envelope.body)).head["id"])

    def collect(self, ids: Iterable[str]) -> list[Delivery]:
        count = int(self._request(Envelope({"request": "collect", "ids": list(ids)})).head["count"])
        return [self._delivery(self._receive()) for _ in range(count)]

    def close(self) -> None:
        self._connection.close()

    @staticmethod
    def _delivery(row: Envelope) -> Delivery:
        key, error = str(row.head["id"]), row.head["error"]
        if error is not None:
            return Delivery(key, error=str(error))
        try:
            return Delivery(key, Envelope.parse(row.head["head"], row.body))
        except BadReply as problem:
            return Delivery(key, error=f"bad reply: {problem}")

    def _request(self, request: Envelope) -> Envelope:
        try:
            write(self._connection, request)
        except OSError as error:
            raise UserError(CONNECTION_LOST) from error
        return self._receive()

    def _receive(self) -> Envelope:
        try:
            reply = read(self._connection)
        except (OSError, Closed, BadReply) as error:
            raise UserError(CONNECTION_LOST) from error
        if "failure" in reply.head:
            raise UserError(f"the SuperLink does not transport messages any more: {reply.head['failure']}.")
        return reply


def relay(transport: Transport, connection: socket.socket) -> None:
    """Serve the ServerApp's end of the socket until the coordinator closes it."""
    with contextlib.suppress(Closed, BadReply, OSError):
        while True:
            request = read(connection)
            try:
                replies = _answer(transport, request)
            except Exception as error:
                replies = [Envelope({"failure": f"{type(error).__name__}: {error}"[:500]})]
            for reply in replies:
                write(connection, reply)


def _answer(transport: Transport, request: Envelope) -> list[Envelope]:
    head = request.head
    if head["request"] == "nodes":
        return [Envelope({"nodes": [vars(node) for node in transport.nodes()]})]
    if head["request"] == "send":
        return [Envelope({"id": transport.send(int(head["node"]), Envelope.parse(head["head"], request.body))})]
    deliveries = transport.collect(head["ids"])
    return [Envelope({"count": len(deliveries)}), *(_row(delivery) for delivery in deliveries)]


def _row(delivery: Delivery) -> Envelope:
    fields: dict[str, Any] = {"id": delivery.id, "error": delivery.error}
    if delivery.envelope is None:
        return Envelope(fields)
    return Envelope({**fields, "head": delivery.envelope.head_text()}, delivery.envelope.body)


def connect(path: str) -> socket.socket:
    """Connect to a socket on this machine."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    return connection


def listen(path: Path) -> socket.socket:
    """Open a socket that only this user can connect to."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    path.chmod(0o600)
    server.listen(1)
    return server


def accept(server: socket.socket, seconds: float, check: Callable[[], None]) -> SocketTransport:
    """Wait for the ServerApp to connect. `check` raises once it cannot connect any more."""
    end = time.monotonic() + seconds
    server.settimeout(0.5)
    while True:
        try:
            connection, _ = server.accept()
            connection.settimeout(None)
            return SocketTransport(connection)
        except TimeoutError:
            check()
            if time.monotonic() > end:
                raise UserError(
                    f"Flower's ServerApp did not start within {seconds:.0f} seconds: check that the SuperLink runs on "
                    "this machine."
                ) from None
