"""Names of classes and clients: the one check for all of them, wherever they come from."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Literal, NamedTuple

from fedwild.core.errors import UserError
from fedwild.core.text import cut

UNKNOWN_NAME = "unknown"
"""The answer for samples of no known or novel class."""
MAX_CHARACTERS = 100
"""The maximum length of a name."""
MAX_BYTES = 200
"""The maximum length of a client's name in UTF-8: it becomes the name of a file, which may have 255 bytes."""
EVERYONE = "*"
"""Stands for all clients: the key of the threshold that they share. No client may have this name."""
Kind = Literal["class", "client"]


class Named(NamedTuple):
    """A name, and the file, key or client that it comes from."""

    name: str
    where: str


Seen = dict[str, Named]
"""Names that were checked before, by their plain form."""


def plain_name(name: str) -> str:
    """Return what identifies a name: without case, surrounding or repeated spaces, and with composed accents."""
    return " ".join(unicodedata.normalize("NFC", name).casefold().split())


def seen_names(names: Iterable[str], where: str) -> Seen:
    """Return names that need no check as `check_name` remembers them."""
    return {plain_name(name): Named(name, where) for name in names}


def check_name(
    name: str, where: str, kind: Kind = "class", seen: Seen | None = None, advice: str = "Rename one of them."
) -> None:
    """Reject an invalid name, and one that differs from another in `seen` only by case or spaces.

    `where` is the file, key or client that the name comes from; it may be empty. A valid name is added to `seen`.
    """
    prefix = f"{where}: " if where else ""
    shown = f"{prefix}{kind} name {cut(name, MAX_CHARACTERS)!r} is not allowed:"
    if not name.strip():
        raise UserError(f"{shown} it must have a character that is not a space.")
    if not name.isprintable() or len(name) > MAX_CHARACTERS:
        raise UserError(f"{shown} it must be one line of at most {MAX_CHARACTERS} printable characters.")
    if kind == "class" and plain_name(name) == UNKNOWN_NAME:
        raise UserError(f"{shown} {UNKNOWN_NAME!r} is the answer for samples of no class. Rename the class.")
    if kind == "client":
        # It becomes the name of a file.
        if name.startswith(".") or name == EVERYONE or set(name) & set("/\\"):
            raise UserError(f"{shown} it must not contain slashes, start with a dot or be {EVERYONE!r}.")
        if len(name.encode()) > MAX_BYTES:
            raise UserError(f"{shown} it must have at most {MAX_BYTES} bytes in UTF-8.")
    if seen is None:
        return
    other = seen.setdefault(plain_name(name), Named(name, where))
    if other.name != name:
        raise UserError(
            f"{prefix}{kind} {name!r} differs from {other.name!r} only by case or spaces ({other.name!r} is from "
            f"{other.where}). {advice}"
        )
