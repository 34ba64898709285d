"""The courier that Flower gives: its Grid, used letter by letter."""

from __future__ import annotations

from collections.abc import Iterable

import httpx
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedwild.discretion import told_outside
from fedwild.errors import BadReply
from fedwild.flower.courier import Delivery, Node
from fedwild.flower.letters import Letter
from fedwild.flower.records import letter_in, record_of

MOST_HEAD_BYTES = 2_000_000
"""Of a site's letter: what it says beside its body is short, and travels on as text within text."""


class GridCourier:
    """Letters as Flower's messages."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._unsent: set[str] = set()

    def nodes(self) -> list[Node]:
        return [Node(info.node_id, info.name) for info in self._grid.get_nodes()]

    def send(self, node: int, letter: Letter) -> str:
        message = Message(record_of(letter), dst_node_id=node, message_type=MessageType.QUERY)
        sent = [key for key in self._grid.push_messages([message]) if key]
        if sent:
            return str(sent[0])
        # The node left a moment ago; whoever asks for an answer is told so.
        key = f"unsent-{node}-{len(self._unsent)}"
        self._unsent.add(key)
        return key

    def collect(self, ids: Iterable[str]) -> list[Delivery]:
        return [delivery for key in list(ids) for delivery in self._collected(key)]

    def _collected(self, key: str) -> list[Delivery]:
        """The answer to one letter, if there is one. It is asked for alone: the id that an answer names is the site's
        own word, and one that cannot be unpacked must not cost the others."""
        if key in self._unsent:
            return [Delivery(key, error="its site is not connected any more")]
        try:
            return [delivery_of(key, message) for message in list(self._grid.pull_messages([key]))[:1]]
        except (httpx.HTTPError, OSError):
            # The SuperLink itself does not answer.
            raise
        except Exception as problem:
            return [Delivery(key, error=f"bad reply: {type(problem).__name__}")]


def delivery_of(key: str, message: Message) -> Delivery:
    """What a site's message is: a letter, or why it is none."""
    if message.has_error():
        return Delivery(key, error=told_outside(f"its site is gone or failed ({message.error.reason})"))
    try:
        letter = letter_in(message.content)
        if len(letter.head_text()) > MOST_HEAD_BYTES:
            raise BadReply(f"a letter's head of more than {MOST_HEAD_BYTES} characters is too long")
        return Delivery(key, letter)
    except (BadReply, RecursionError) as problem:
        return Delivery(key, error=f"bad reply: {problem}")
