"""What coordinator and sites write to each other: a JSON head and one packed body.

Flower takes seconds for a message of many arrays and hardly more for many bytes, so a letter has one body: the bytes of
a payload. Between processes of one machine a letter is two lengths, the head and the body. Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

from fedwild.errors import BadReply

PROTOCOL = 1
"""Sites and coordinators of different protocols refuse each other."""
MAX_HEAD_BYTES = 16_000_000
_LENGTHS = struct.Struct("<QQ")


class Closed(Exception):
    """The other side hung up between two letters."""


@dataclass(frozen=True)
class Letter:
    """A JSON object and bytes."""

    head: dict[str, Any]
    body: bytes | bytearray = b""

    def head_text(self) -> str:
        return json.dumps(self.head)


def letter_of(text: str, body: bytes | bytearray) -> Letter:
    """The letter with this head; whatever is not a JSON object raises `BadReply`."""
    if len(text) > MAX_HEAD_BYTES:
        raise BadReply(f"a letter's head of {len(text)} characters is too long")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadReply("a letter's head is not JSON") from error
    if not isinstance(head, dict):
        raise BadReply("a letter's head is not a JSON object")
    return Letter(head, body)


def write(connection: socket.socket, letter: Letter) -> None:
    """Send a letter to a process of this machine."""
    head = letter.head_text().encode()
    connection.sendall(_LENGTHS.pack(len(head), len(letter.body)) + head)
    if letter.body:
        connection.sendall(letter.body)


def read(connection: socket.socket) -> Letter:
    """Receive a letter from a process of this machine; `Closed` if there comes none any more."""
    lengths = _LENGTHS.unpack(_exactly(connection, _LENGTHS.size, first=True))
    if lengths[0] > MAX_HEAD_BYTES:
        raise BadReply(f"a letter's head of {lengths[0]} bytes is too long")
    head = _exactly(connection, lengths[0])
    body = _exactly(connection, lengths[1])
    try:
        return letter_of(head.decode(), body)
    except UnicodeDecodeError as error:
        raise BadReply("a letter's head is not text") from error


def _exactly(connection: socket.socket, count: int, first: bool = False) -> bytearray:
    data = bytearray(count)
    rest = memoryview(data)
    while rest:
        got = connection.recv_into(rest)
        if not got:
            if first and len(rest) == count:
                raise Closed
            raise BadReply("a letter is cut short")
        rest = rest[got:]
    return data
