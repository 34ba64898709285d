"""Digests that reveal damage: of payload files, and inside JSON files.

They protect against accidents, such as a flipped bit or a lost block. They are no signatures: whoever can change a file
can also change its digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

DIGEST = "digest"
"""The key of the digest in a JSON file and in the metadata of a safetensors file."""


def digest_of(parts: Iterable[bytes | bytearray | memoryview]) -> str:
    """Return the digest of parts as text. SHA-256 is fast: current processors have instructions for it."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def seal_json(table: dict[str, Any]) -> bytes:
    """Return a JSON object as text with the digest of its content as the last key."""
    return (json.dumps({**table, DIGEST: _json_digest(table)}, indent=2) + "\n").encode()


def open_json(data: bytes, optional: bool = False) -> dict[str, Any]:
    """Return the object that `seal_json` wrote, without its digest; raise `ValueError` if it is damaged.

    `optional` accepts an object that has no digest at all.
    """
    try:
        table = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(table, dict):
        raise ValueError("it is not a JSON object")
    if optional and DIGEST not in table:
        return table
    if table.pop(DIGEST, None) != _json_digest(table):
        raise ValueError("its content does not match its digest")
    return table


def _json_digest(table: dict[str, Any]) -> str:
    return digest_of([json.dumps(table, sort_keys=True).encode()])
