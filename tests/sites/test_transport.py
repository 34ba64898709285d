"""The two ends of the socket between the coordinator and Flower's ServerApp."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator

import pytest

from fedwild.core.errors import UserError
from fedwild.sites.transport import Delivery, Node, SocketTransport, carry
from fedwild.sites.envelope import Envelope


class Pigeons:
    """A transport that answers each letter with itself."""

    def __init__(self) -> None:
        self.letters: dict[str, Envelope] = {}

    def nodes(self) -> list[Node]:
        return [Node(7, "a"), Node(2**63, "")]

    def send(self, node: int, letter: Envelope) -> str:
        if node == 404:
            raise ConnectionError("no such node")
        self.letters[f"{node}-{len(self.letters)}"] = letter
        return list(self.letters)[-1]

    def collect(self, ids: Iterable[str]) -> list[Delivery]:
        return [Delivery(key, self.letters.get(key), None if key in self.letters else "lost") for key in ids]


@pytest.fixture
def transport() -> Iterator[SocketTransport]:
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=carry, args=(Pigeons(), theirs))
    thread.start()
    far = SocketTransport(ours)
    yield far
    far.close()
    thread.join(10)
    assert not thread.is_alive()
    theirs.close()


def test_letters_nodes_and_losses_come_through(transport: SocketTransport) -> None:
    assert transport.nodes() == [Node(7, "a"), Node(2**63, "")]
    letter = Envelope({"kind": "job", "text": "ä"}, bytes(range(256)) * 1000)
    key = transport.send(7, letter)
    first, second = transport.collect([key, "other"])
    assert first.letter == Envelope(letter.head, bytearray(letter.body))
    assert (second.letter, second.error) == (None, "lost")


def test_trouble_at_the_far_end_is_one_sentence(transport: SocketTransport) -> None:
    with pytest.raises(UserError, match="does not carry letters any more: ConnectionError: no such node"):
        transport.send(404, Envelope({}))


def test_a_lost_connection_says_how_to_go_on() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(UserError, match=r"connection to the SuperLink is lost: `fedwild resume` goes on"):
        SocketTransport(ours).nodes()
    ours.close()
