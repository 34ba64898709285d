"""The transport over Flower's Grid, one message at a time."""

from __future__ import annotations

from collections.abc import Iterable

import httpx
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedwild.core.errors import BadReply
from fedwild.sites.envelope import Envelope
from fedwild.sites.records import from_record, to_record
from fedwild.sites.redaction import redact
from fedwild.sites.transport import Delivery, Node

MAX_HEAD_BYTES = 2_000_000
"""Limit for a site's head. Heads are short, and the socket to the coordinator sends them as text within text."""


class GridTransport:
    """Sends envelopes as Flower's messages."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._unsent: set[str] = set()

    def nodes(self) -> list[Node]:
        return [Node(info.node_id, info.name) for info in self._grid.get_nodes()]

    def send(self, node: int, envelope: Envelope) -> str:
        message = Message(to_record(envelope), dst_node_id=node, message_type=MessageType.QUERY)
        sent = [key for key in self._grid.push_messages([message]) if key]
        if sent:
            return str(sent[0])
        # The node has just left: `collect` reports that.
        key = f"unsent-{node}-{len(self._unsent)}"
        self._unsent.add(key)
        return key

    def collect(self, ids: Iterable[str]) -> list[Delivery]:
        return [delivery for key in list(ids) for delivery in self._collect_one(key)]

    def _collect_one(self, key: str) -> list[Delivery]:
        """Return the answer to one envelope, if it has arrived.

        Answers are pulled one by one: a site chooses the id that its answer names, so this id is not trusted, and an
        answer that cannot be unpacked must not affect the others.
        """
        if key in self._unsent:
            return [Delivery(key, error="its site disconnected")]
        try:
            return [delivery_of(key, message) for message in list(self._grid.pull_messages([key]))[:1]]
        except (httpx.HTTPError, OSError):
            # The SuperLink itself does not answer.
            raise
        except Exception as problem:
            return [Delivery(key, error=f"bad reply: {type(problem).__name__}")]


def delivery_of(key: str, message: Message) -> Delivery:
    """Return the envelope in a site's message, or the reason why there is none."""
    if message.has_error():
        return Delivery(key, error=redact(f"its site disconnected or failed ({message.error.reason})"))
    try:
        envelope = from_record(message.content)
        if len(envelope.head_text()) > MAX_HEAD_BYTES:
            raise BadReply(f"message head of more than {MAX_HEAD_BYTES} characters is too long")
        return Delivery(key, envelope)
    except (BadReply, RecursionError) as problem:
        return Delivery(key, error=f"bad reply: {problem}")
