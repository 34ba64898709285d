"""The header of a payload: a JSON object that describes tensors, read entry by entry.

A generic JSON reader builds everything before anything can be checked: a header of 63 MB took 2 GB and nine seconds.
This reader stops at the first entry that does not describe a tensor, so its memory is bounded by the number of tensors.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, NamedTuple

from fedwild.core.errors import BadReply

MAX_HEADER_BYTES = 16_000_000
"""Limit for messages. The header of a network with 10,000 tensors has about 1.3 MB."""
MAX_ENTRY = 1000
"""The maximum number of characters of an entry, which holds a type, a shape and two offsets."""
MAX_NAME = 1000
MAX_DIGITS = 40
_SPACE = re.compile(r"[ \t\n\r]*")
_METADATA = "__metadata__"
_JSON = json.JSONDecoder()
_NUMBER = r"(?:0|[1-9][0-9]{0,17})"
# An entry as fedwild and the safetensors library write it, which is read in one step.
_USUAL_ENTRY = re.compile(
    r'"([^"\\\x00-\x1f]{1,1000})":\{"dtype":"([A-Z0-9]{1,10})",'
    rf'"shape":\[((?:{_NUMBER}(?:,{_NUMBER}){{0,31}})?)\],"data_offsets":\[({_NUMBER}),({_NUMBER})\]\}}'
)


class TensorEntry(NamedTuple):
    """The description of one tensor, as it is in the header."""

    dtype: str
    shape: list[int]
    begin: int
    end: int

    def to_json(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": self.shape, "data_offsets": [self.begin, self.end]}


def read_header(
    buffer: bytearray, max_bytes: int = MAX_HEADER_BYTES
) -> tuple[dict[str, TensorEntry], dict[str, str], int]:
    """Return the tensors that the header describes, its metadata, and the offset of the first tensor."""
    if len(buffer) < 8:
        raise BadReply(f"payload of {len(buffer)} bytes is too short: it has no header")
    (length,) = struct.unpack("<Q", buffer[:8])
    if length > len(buffer) - 8:
        raise BadReply("payload is truncated: its header is incomplete")
    if length > max_bytes:
        raise BadReply(f"payload header of {length} bytes is too long")
    try:
        entries, metadata = _Reader(buffer[8 : 8 + length].decode("utf-8")).read()
    except (ValueError, IndexError, RecursionError) as error:
        raise BadReply("payload header is not a JSON object that describes tensors") from error
    return entries, metadata, 8 + length


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; reject one with the same key twice, of which readers choose different values."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key occurs twice")
    return table


def bounded_int(digits: str) -> int:
    """Return a whole number; reject one that cannot be converted to a float."""
    if len(digits) > MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return int(digits)


UNIQUE_KEYS = json.JSONDecoder(object_pairs_hook=unique_keys, parse_int=bounded_int)
"""Reads JSON without objects that have the same key twice, and without enormous numbers."""


class _Reader:
    """Reads one header. Raises `ValueError` or `IndexError` at the first character that is wrong."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def read(self) -> tuple[dict[str, TensorEntry], dict[str, str]]:
        entries: dict[str, TensorEntry] = {}
        metadata: dict[str, str] | None = None
        more = self._begins_object()
        while more:
            usual = _USUAL_ENTRY.match(self._text, self._at)
            name = self._key() if usual is None else usual[1]
            if name in entries or (name == _METADATA and metadata is not None):
                raise BadReply(f"payload header has {name[:100]!r} twice")
            if usual is not None:
                shape = [int(side) for side in usual[3].split(",")] if usual[3] else []
                entries[name] = TensorEntry(usual[2], shape, int(usual[4]), int(usual[5]))
                self._at = usual.end()
            elif name == _METADATA:
                metadata = self._strings()
            else:
                entries[name] = self._entry()
            more = self._continues()
        if self._at != len(self._text):
            raise ValueError("there is something after the header")
        return entries, metadata or {}

    def _strings(self) -> dict[str, str]:
        """Read an object whose values are text."""
        table: dict[str, str] = {}
        more = self._begins_object()
        while more:
            key = self._key()
            if key in table:
                raise BadReply(f"payload header has {key[:100]!r} twice")
            table[key] = self._string()
            more = self._continues()
        return table

    def _entry(self) -> TensorEntry:
        """Read the description of a tensor, which contains no other object."""
        begin = self._skip_space()
        end = self._text.index("}", begin, begin + MAX_ENTRY) + 1
        table = UNIQUE_KEYS.decode(self._text[begin:end])
        self._at = self._skip_space(end)
        if not isinstance(table, dict) or table.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError("an entry does not describe a tensor")
        dtype, shape, offsets = table["dtype"], table["shape"], table["data_offsets"]
        if not isinstance(dtype, str) or not _are_whole(shape) or not _are_whole(offsets) or len(offsets) != 2:
            raise ValueError("an entry does not describe a tensor")
        return TensorEntry(dtype, shape, *offsets)

    def _key(self) -> str:
        key = self._string()
        # A half of a surrogate pair is JSON, but cannot be written to a file.
        if len(key) > MAX_NAME or (not key.isascii() and any("\ud800" <= character <= "\udfff" for character in key)):
            raise ValueError("a name is too long or not text")
        self._at = self._skip_space()
        self._take(":")
        return key

    def _string(self) -> str:
        if self._text[self._at] != '"':
            raise ValueError("text is missing")
        text, self._at = _JSON.raw_decode(self._text, self._at)
        return str(text)

    def _begins_object(self) -> bool:
        """Read the beginning of an object. Returns whether it has an entry."""
        self._at = self._skip_space()
        self._take("{")
        if self._text[self._at] != "}":
            return True
        self._at = self._skip_space(self._at + 1)
        return False

    def _continues(self) -> bool:
        """Read what separates entries, or the end of the object. Returns whether another entry follows."""
        self._at = self._skip_space()
        mark = self._text[self._at]
        if mark not in ",}":
            raise ValueError("an entry does not end")
        self._at = self._skip_space(self._at + 1)
        return mark == ","

    def _take(self, mark: str) -> None:
        """Read one character and the space after it."""
        if self._text[self._at] != mark:
            raise ValueError(f"{mark} is missing")
        self._at = self._skip_space(self._at + 1)

    def _skip_space(self, at: int | None = None) -> int:
        found = _SPACE.match(self._text, self._at if at is None else at)
        assert found is not None
        return found.end()


def _are_whole(numbers: Any) -> bool:
    """Return whether this is a list of whole numbers. Booleans do not count."""
    return isinstance(numbers, list) and all(type(number) is int for number in numbers)
