"""The two ends of the socket between the coordinator and Flower's ServerApp."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator

import pytest

from fedwild.core.errors import UserError
from fedwild.sites.envelope import Envelope
from fedwild.sites.transport import Delivery, Node, SocketTransport, relay


class EchoTransport:
    """A transport that answers each envelope with itself."""

    def __init__(self) -> None:
        self.envelopes: dict[str, Envelope] = {}

    def nodes(self) -> list[Node]:
        return [Node(7, "a"), Node(2**63, "")]

    def send(self, node: int, envelope: Envelope) -> str:
        if node == 404:
            raise ConnectionError("no such node")
        self.envelopes[f"{node}-{len(self.envelopes)}"] = envelope
        return list(self.envelopes)[-1]

    def collect(self, ids: Iterable[str]) -> list[Delivery]:
        return [Delivery(key, self.envelopes.get(key), None if key in self.envelopes else "lost") for key in ids]


@pytest.fixture
def transport() -> Iterator[SocketTransport]:
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=relay, args=(EchoTransport(), theirs))
    thread.start()
    coordinator_end = SocketTransport(ours)
    yield coordinator_end
    coordinator_end.close()
    thread.join(10)
    assert not thread.is_alive()
    theirs.close()


def test_nodes_envelopes_and_errors_are_relayed(transport: SocketTransport) -> None:
    assert transport.nodes() == [Node(7, "a"), Node(2**63, "")]
    envelope = Envelope({"kind": "job", "text": "ä"}, bytes(range(256)) * 1000)
    key = transport.send(7, envelope)
    first, second = transport.collect([key, "other"])
    assert first.envelope == Envelope(envelope.head, bytearray(envelope.body))
    assert (second.envelope, second.error) == (None, "lost")


def test_failure_of_the_transport_is_one_sentence(transport: SocketTransport) -> None:
    with pytest.raises(UserError, match="does not transport messages any more: ConnectionError: no such node"):
        transport.send(404, Envelope({}))


def test_lost_connection_says_how_to_continue() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(UserError, match=r"connection to the SuperLink is lost: `fedwild resume` continues"):
        SocketTransport(ours).nodes()
    ours.close()
