"""The transport over Flower's Grid, with a grid that keeps its messages in memory."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

pytest.importorskip("flwr", reason="needs fedwild[flower]")

from flwr.app import Error, Message
from flwr.supercore.task_identity import TaskIdentity

from fedwild.sites import grid as grid_module
from fedwild.sites.transport import Node
from fedwild.sites.grid import GridTransport
from fedwild.sites.envelope import Envelope
from fedwild.sites.records import letter_in, record_of


@pytest.fixture(autouse=True)
def inside_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are made only by a process that Flower has told which one it is."""
    for field in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, field, 1)


class Info:
    """What Flower tells of a node."""

    node_id, name = 5, "hospital-a"


class MemoryGrid:
    """Takes messages for node 5 and answers them; node 6 fails, node 7 is unknown."""

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
            echo = Envelope({"echo": letter_in(message.content).head}, letter_in(message.content).body)
            self.replies[key] = Message(record_of(echo), reply_to=message)
        return [key]

    def pull_messages(self, ids: list[str]) -> list[Message]:
        self.asked.append(ids)
        return [self.replies[key] for key in ids]


def test_letters_go_to_nodes_and_answers_come_back_by_id() -> None:
    transport = GridTransport(MemoryGrid())  # type: ignore[arg-type]
    assert transport.nodes() == [Node(5, "hospital-a")]
    key = transport.send(5, Envelope({"kind": "job"}, b"body"))
    (delivery,) = transport.collect([key])
    assert (delivery.id, delivery.letter) == (key, Envelope({"echo": {"kind": "job"}}, bytearray(b"body")))


def test_a_node_that_failed_is_an_error_and_no_end() -> None:
    transport = GridTransport(MemoryGrid())  # type: ignore[arg-type]
    (delivery,) = transport.collect([transport.send(6, Envelope({}))])
    assert delivery.letter is None
    assert "node unavailable" in str(delivery.error)


def test_a_letter_that_flower_does_not_take_is_an_error_and_no_end() -> None:
    grid = MemoryGrid()
    transport = GridTransport(grid)  # type: ignore[arg-type]
    lost, sent = transport.send(7, Envelope({})), transport.send(5, Envelope({}))
    deliveries = {delivery.id: delivery.error for delivery in transport.collect([lost, sent])}
    assert deliveries == {lost: "its site is not connected any more", sent: None}
    assert grid.asked == [[sent]]


def test_an_answer_belongs_to_the_letter_it_was_asked_for_whatever_it_says() -> None:
    grid = MemoryGrid()
    transport = GridTransport(grid)  # type: ignore[arg-type]
    key = transport.send(5, Envelope({"kind": "job"}))
    grid.replies[key].metadata.__dict__["_reply_to_message_id"] = "somebody-elses"
    (delivery,) = transport.collect([key])
    assert delivery.id == key


def test_an_answer_that_cannot_be_unpacked_costs_no_other() -> None:
    class Spoiled(MemoryGrid):
        def pull_messages(self, ids: list[str]) -> list[Message]:
            if ids == ["message-0"]:
                raise ValueError("cannot be inflated")
            return super().pull_messages(ids)

    transport = GridTransport(Spoiled())  # type: ignore[arg-type]
    keys = [transport.send(5, Envelope({})) for _ in range(2)]
    assert [delivery.error for delivery in transport.collect(keys)] == ["bad reply: ValueError", None]


def test_a_superlink_that_is_gone_is_no_sites_fault() -> None:
    class Gone(MemoryGrid):
        def pull_messages(self, ids: list[str]) -> list[Message]:
            raise httpx.ConnectError("refused")

    transport = GridTransport(Gone())  # type: ignore[arg-type]
    with pytest.raises(httpx.ConnectError):
        transport.collect([transport.send(5, Envelope({}))])


def test_a_head_that_would_burst_the_couriers_own_letters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_module, "MAX_HEAD_BYTES", 100)
    transport = GridTransport(MemoryGrid())  # type: ignore[arg-type]
    (delivery,) = transport.collect([transport.send(5, Envelope({"kind": "\u00e4" * 40}))])
    assert delivery.letter is None
    assert "head of more than 100 characters" in str(delivery.error)
