"""The courier that Flower gives: its Grid, used letter by letter."""

from __future__ import annotations

from collections.abc import Iterable

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedwild.errors import BadReply
from fedwild.flower.courier import Delivery, Node
from fedwild.flower.letters import Letter
from fedwild.flower.records import letter_in, record_of


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
        asked = list(ids)
        lost = [Delivery(key, error="its site is not connected any more") for key in asked if key in self._unsent]
        sent = [key for key in asked if key not in self._unsent]
        return lost + [self._delivery(message) for message in (self._grid.pull_messages(sent) if sent else [])]

    @staticmethod
    def _delivery(message: Message) -> Delivery:
        key = message.metadata.reply_to_message_id
        if message.has_error():
            return Delivery(key, error=f"its site is gone or failed ({message.error.reason})"[:300])
        try:
            return Delivery(key, letter_in(message.content))
        except BadReply as problem:
            return Delivery(key, error=f"bad reply: {problem}")
