"""The transport over Flower's Grid, with a grid in memory."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from fedwild.sites import grid as grid_module
from fedwild.sites.envelope import Envelope
from fedwild.sites.grid import GridTransport
from fedwild.sites.records import from_record, to_record
from fedwild.sites.transport import Node


@pytest.fixture(autouse=True)
def inside_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower creates messages only in a process with a task identity."""
    for field in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, field, 1)


class Info:
    """Flower's description of a node."""

    node_id, name = 5, "hospital-a"


class MemoryGrid:
    """Answers messages to node 5; node 6 fails, node 7 is unknown."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.replies: dict[str, Any] = {}

    def get_nodes(self) -> list[Info]:
        return [Info()]

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        (message,) = messages
        if message.metadata.dst_node_id == 7:
            return [None]
        key = f"message-{len(self.replies)}"
        message.metadata.__dict__["_message_id"] = key
        if message.metadata.dst_node_id == 6:
            self.replies[key] = Message(Error(code=1, reason="node unavailable"), reply_to=message)
        else:
            echo = Envelope({"echo": from_record(message.content).head}, from_record(message.content).body)
            self.replies[key] = Message(to_record(echo), reply_to=message)
        return [key]

    def pull_messages(self, ids: list[str]) -> list[Message]:
        self.asked.append(ids)
        return [self.replies[key] for key in ids]


def test_answers_are_collected_by_id() -> None:
    transport = GridTransport(MemoryGrid())  # type: ignore[arg-type]
    assert transport.nodes() == [Node(5, "hospital-a")]
    key = transport.send(5, Envelope({"kind": "job"}, b"body"))
    (delivery,) = transport.collect([key])
    assert (delivery.id, delivery.envelope) == (key, Envelope({"echo": {"kind": "job"}}, bytearray(b"body")))


def test_failed_node_is_an_error_in_its_delivery() -> None:
    transport = GridTransport(MemoryGrid())  # type: ignore[arg-type]
    (delivery,) = transport.collect([transport.send(6, Envelope({}))])
    assert delivery.envelope is None
    assert "node unavailable" in str(delivery.error)


def test_message_that_flower_does_not_accept_is_an_error_in_its_delivery() -> None:
    grid = MemoryGrid()
    transport = GridTransport(grid)  # type: ignore[arg-type]
    lost, sent = transport.send(7, Envelope({})), transport.send(5, Envelope({}))
    deliveries = {delivery.id: delivery.error for delivery in transport.collect([lost, sent])}
    assert deliveries == {lost: "its site disconnected", sent: None}
    assert grid.asked == [[sent]]


def test_answer_belongs_to_the_requested_message_whatever_id_it_names() -> None:
    grid = MemoryGrid()
    transport = GridTransport(grid)  # type: ignore[arg-type]
    key = transport.send(5, Envelope({"kind": "job"}))
    grid.replies[key].metadata.__dict__["_reply_to_message_id"] = "another-message"
    (delivery,) = transport.collect([key])
    assert delivery.id == key


def test_answer_that_cannot_be_unpacked_does_not_affect_others() -> None:
    class Spoiled(MemoryGrid):
        def pull_messages(self, ids: list[str]) -> list[Message]:
            if ids == ["message-0"]:
                raise ValueError("cannot be inflated")
            return super().pull_messages(ids)

    transport = GridTransport(Spoiled())  # type: ignore[arg-type]
    keys = [transport.send(5, Envelope({})) for _ in range(2)]
    assert [delivery.error for delivery in transport.collect(keys)] == ["bad reply: ValueError", None]


def test_unreachable_superlink_raises() -> None:
    class Gone(MemoryGrid):
        def pull_messages(self, ids: list[str]) -> list[Message]:
            raise httpx.ConnectError("refused")

    transport = GridTransport(Gone())  # type: ignore[arg-type]
    with pytest.raises(httpx.ConnectError):
        transport.collect([transport.send(5, Envelope({}))])


def test_too_long_head_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_module, "MAX_HEAD_BYTES", 100)
    transport = GridTransport(MemoryGrid())  # type: ignore[arg-type]
    (delivery,) = transport.collect([transport.send(5, Envelope({"kind": "\u00e4" * 40}))])
    assert delivery.envelope is None
    assert "head of more than 100 characters" in str(delivery.error)
