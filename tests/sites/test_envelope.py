"""Envelope between processes: whole, or refused."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from fedwild.core.errors import BadReply
from fedwild.sites.envelope import MAX_HEAD_BYTES, Closed, Envelope, letter_of, read, write


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_letter_arrives_as_it_was_sent(ends: tuple[socket.socket, socket.socket]) -> None:
    write(ends[0], Envelope({"kind": "job", "threshold": float("inf"), "name": "ä"}, b"\x00\x01body"))
    write(ends[0], Envelope({"kind": "empty"}))
    assert read(ends[1]) == Envelope({"kind": "job", "threshold": float("inf"), "name": "ä"}, bytearray(b"\x00\x01body"))
    assert read(ends[1]).body == b""


def test_hanging_up_between_letters_is_no_error_but_within_one_is(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(struct.pack("<QQ", 10, 5) + b"{}")
    ends[0].close()
    with pytest.raises(BadReply, match="cut short"):
        read(ends[1])
    with pytest.raises(Closed):
        read(ends[1])


@pytest.mark.parametrize("text", ["[]", "1", '"text"', "{", "", "[" * 100_000])
def test_a_head_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(BadReply, match="head is not"):
        letter_of(text, b"")


def test_an_endless_head_is_refused_before_it_is_read(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(struct.pack("<QQ", MAX_HEAD_BYTES + 1, 0))
    with pytest.raises(BadReply, match="too long"):
        read(ends[1])


def test_a_head_that_is_no_text_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].sendall(struct.pack("<QQ", 2, 0) + b"\xff\xfe")
    with pytest.raises(BadReply, match="not text"):
        read(ends[1])
