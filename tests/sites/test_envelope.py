"""Envelopes between processes arrive complete, or are rejected."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from fedwild.core.errors import BadReply
from fedwild.sites.envelope import MAX_HEAD_BYTES, Closed, Envelope, read, write

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_envelope_arrives_as_it_was_sent(ends: Ends) -> None:
    sent = {"kind": "job", "threshold": float("inf"), "name": "ä"}
    write(ends[0], Envelope(sent, b"\x00\x01body"))
    write(ends[0], Envelope({"kind": "empty"}))
    assert read(ends[1]) == Envelope(sent, bytearray(b"\x00\x01body"))
    assert read(ends[1]).body == b""


def test_closing_within_an_envelope_is_an_error_but_not_between_two(ends: Ends) -> None:
    ends[0].sendall(struct.pack("<QQ", 10, 5) + b"{}")
    ends[0].close()
    with pytest.raises(BadReply, match="truncated"):
        read(ends[1])
    with pytest.raises(Closed):
        read(ends[1])


@pytest.mark.parametrize("text", ["[]", "1", '"text"', "{", "", "[" * 100_000])
def test_head_that_is_not_a_json_object_is_rejected(text: str) -> None:
    with pytest.raises(BadReply, match="head is not"):
        Envelope.parse(text, b"")


def test_too_long_head_is_rejected_before_it_is_read(ends: Ends) -> None:
    ends[0].sendall(struct.pack("<QQ", MAX_HEAD_BYTES + 1, 0))
    with pytest.raises(BadReply, match="too long"):
        read(ends[1])


def test_head_that_is_not_text_is_rejected(ends: Ends) -> None:
    ends[0].sendall(struct.pack("<QQ", 2, 0) + b"\xff\xfe")
    with pytest.raises(BadReply, match="not text"):
        read(ends[1])
