"""Errors meant for people: one clear sentence each, no traceback on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right. The message names the key, the value and what would be right."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class BadReply(Exception):
    """A client's reply that the server refuses; the round goes on without it."""


class RoundFailed(UserError):
    """Too few clients answered for the round to count."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not registered, with the nearest one as a suggestion."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return UserError(f"{kind} {name!r} is not known.{hint} Available: {', '.join(names)}.")
