"""Who carries letters between the coordinator and nodes, and how the coordinator reaches it.

Flower's ServerApp runs in a process that the SuperLink starts. It stays a courier: it carries letters for the process
that the user started, over a socket that only this user can open.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedwild.errors import BadReply, UserError
from fedwild.flower.letters import Closed, Letter, letter_of, read, write


@dataclass(frozen=True)
class Node:
    """A site's connection as Flower sees it. Ids are drawn anew for every connection without a key."""

    id: int
    name: str = ""
    """Under which its key is registered, if it is."""


@dataclass(frozen=True)
class Delivery:
    """What came back for a letter: a letter, or why there is none."""

    id: str
    letter: Letter | None = None
    error: str | None = None


class Courier(Protocol):
    """Carries letters. Nodes answer each letter once, in their own time."""

    def nodes(self) -> list[Node]:
        """The nodes that are connected now."""
        ...

    def send(self, node: int, letter: Letter) -> str:
        """Hand in a letter; returns the id to ask for its answer by."""
        ...

    def collect(self, ids: Iterable[str]) -> list[Delivery]:
        """Answers that have come for these letters, each once."""
        ...


class SocketCourier:
    """The coordinator's end of the socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def nodes(self) -> list[Node]:
        reply = self._ask(Letter({"ask": "nodes"}))
        return [Node(int(row["id"]), str(row["name"])) for row in reply.head["nodes"]]

    def send(self, node: int, letter: Letter) -> str:
        head = {"ask": "send", "node": node, "head": letter.head_text()}
        return str(self._ask(Letter(head, letter.body)).head["id"])

    def collect(self, ids: Iterable[str]) -> list[Delivery]:
        count = int(self._ask(Letter({"ask": "collect", "ids": list(ids)})).head["count"])
        return [self._delivery(self._receive()) for _ in range(count)]

    def close(self) -> None:
        self._connection.close()

    @staticmethod
    def _delivery(row: Letter) -> Delivery:
        key, error = str(row.head["id"]), row.head["error"]
        if error is not None:
            return Delivery(key, error=str(error))
        try:
            return Delivery(key, letter_of(row.head["head"], row.body))
        except BadReply as problem:
            return Delivery(key, error=f"bad reply: {problem}")

    def _ask(self, request: Letter) -> Letter:
        try:
            write(self._connection, request)
        except OSError as error:
            raise UserError(LOST) from error
        return self._receive()

    def _receive(self) -> Letter:
        try:
            reply = read(self._connection)
        except (OSError, Closed, BadReply) as error:
            raise UserError(LOST) from error
        if "trouble" in reply.head:
            raise UserError(f"the SuperLink does not carry letters any more: {reply.head['trouble']}.")
        return reply


LOST = "the connection to the SuperLink is lost: `fedwild resume` goes on from the last finished round."


def carry(courier: Courier, connection: socket.socket) -> None:
    """The ServerApp's end: do what the coordinator asks until it hangs up."""
    with contextlib.suppress(Closed, BadReply, OSError):
        while True:
            request = read(connection)
            try:
                replies = _done(courier, request)
            except Exception as error:
                replies = [Letter({"trouble": f"{type(error).__name__}: {error}"[:500]})]
            for reply in replies:
                write(connection, reply)


def _done(courier: Courier, request: Letter) -> list[Letter]:
    head = request.head
    if head["ask"] == "nodes":
        return [Letter({"nodes": [vars(node) for node in courier.nodes()]})]
    if head["ask"] == "send":
        return [Letter({"id": courier.send(int(head["node"]), letter_of(head["head"], request.body))})]
    deliveries = courier.collect(head["ids"])
    return [Letter({"count": len(deliveries)}), *(_row(delivery) for delivery in deliveries)]


def _row(delivery: Delivery) -> Letter:
    fields: dict[str, Any] = {"id": delivery.id, "error": delivery.error}
    if delivery.letter is None:
        return Letter(fields)
    return Letter({**fields, "head": delivery.letter.head_text()}, delivery.letter.body)


def connect(path: str) -> socket.socket:
    """Reach the coordinator's socket."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    return connection


def listen(path: Path) -> socket.socket:
    """A socket for one courier to come to."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    path.chmod(0o600)
    server.listen(1)
    return server


def accept(server: socket.socket, seconds: float, check: Callable[[], None]) -> SocketCourier:
    """Wait for the courier; `check` raises if it cannot come any more."""
    end = time.monotonic() + seconds
    server.settimeout(0.5)
    while True:
        try:
            connection, _ = server.accept()
            connection.settimeout(None)
            return SocketCourier(connection)
        except TimeoutError:
            check()
            if time.monotonic() > end:
                raise UserError(
                    f"Flower's ServerApp did not start within {seconds:.0f} seconds: is the SuperLink on this machine?"
                ) from None
