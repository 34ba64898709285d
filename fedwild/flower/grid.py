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

    def nodes(self) -> list[Node]:
        return [Node(info.node_id, info.name) for info in self._grid.get_nodes()]

    def send(self, node: int, letter: Letter) -> str:
        message = Message(record_of(letter), dst_node_id=node, message_type=MessageType.QUERY)
        (sent,) = self._grid.push_messages([message])
        if not sent:
            raise ConnectionError(f"Flower did not take a letter for node {node}")
        return str(sent)

    def collect(self, ids: Iterable[str]) -> list[Delivery]:
        return [self._delivery(message) for message in self._grid.pull_messages(list(ids))]

    @staticmethod
    def _delivery(message: Message) -> Delivery:
        key = message.metadata.reply_to_message_id
        if message.has_error():
            return Delivery(key, error=f"its site is gone or failed ({message.error.reason})"[:300])
        try:
            return Delivery(key, letter_in(message.content))
        except BadReply as problem:
            return Delivery(key, error=f"bad reply: {problem}")
