"""What the coordinator and the sites send each other: a JSON head and one packed body.

Flower takes seconds for a message of many arrays, but hardly longer for many bytes. An envelope therefore has one body:
the bytes of a payload. Between processes on one machine, an envelope is sent as two lengths, the head and the body.
Nothing is ever unpickled.
"""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

from fedwild.core.errors import BadReply

PROTOCOL = 2
"""Sites and coordinators with different protocols reject each other."""
MAX_HEAD_BYTES = 16_000_000
_LENGTHS = struct.Struct("<QQ")


class Closed(Exception):
    """The other side closed the connection between two envelopes."""


@dataclass(frozen=True)
class Envelope:
    """A JSON object and bytes."""

    head: dict[str, Any]
    body: bytes | bytearray = b""

    def head_text(self) -> str:
        return json.dumps(self.head)

    @classmethod
    def parse(cls, text: str, body: bytes | bytearray) -> Envelope:
        """Return the envelope with this head. Raises `BadReply` if the head is not a JSON object."""
        if len(text) > MAX_HEAD_BYTES:
            raise BadReply(f"message head of {len(text)} characters is too long")
        try:
            head = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadReply("message head is not JSON") from error
        if not isinstance(head, dict):
            raise BadReply("message head is not a JSON object")
        return cls(head, body)


def write(connection: socket.socket, envelope: Envelope) -> None:
    """Send an envelope to a process on this machine."""
    head = envelope.head_text().encode()
    connection.sendall(_LENGTHS.pack(len(head), len(envelope.body)) + head)
    if envelope.body:
        connection.sendall(envelope.body)


def read(connection: socket.socket) -> Envelope:
    """Receive an envelope from a process on this machine. Raises `Closed` if the other side has hung up."""
    lengths = _LENGTHS.unpack(_read_exactly(connection, _LENGTHS.size, first=True))
    if lengths[0] > MAX_HEAD_BYTES:
        raise BadReply(f"message head of {lengths[0]} bytes is too long")
    head = _read_exactly(connection, lengths[0])
    body = _read_exactly(connection, lengths[1])
    try:
        return Envelope.parse(head.decode(), body)
    except UnicodeDecodeError as error:
        raise BadReply("message head is not text") from error


def _read_exactly(connection: socket.socket, count: int, first: bool = False) -> bytearray:
    data = bytearray(count)
    rest = memoryview(data)
    while rest:
        received = connection.recv_into(rest)
        if not received:
            if first and len(rest) == count:
                raise Closed
            raise BadReply("message is truncated")
        rest = rest[received:]
    return data
