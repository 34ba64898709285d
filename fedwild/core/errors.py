"""Errors for users: one clear sentence per problem; the command line shows no traceback for them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A problem that the user can fix. The message gives the key, its value and what is allowed."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class BadReply(Exception):
    """An invalid reply. The server rejects it, and the round continues without this client."""


class DamageWarning(UserWarning):
    """A file of a run is damaged, and what is intact is used instead."""


class RoundFailed(UserError):
    """Too few clients replied for the round to count."""


@contextmanager
def explain_os_errors(what: str) -> Iterator[None]:
    """Turn an `OSError` inside into a `UserError`: what failed, then the system's reason."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{what}: {error.strerror or error}.") from error


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Return the error for a name that is not registered, with the closest registered name as a suggestion."""
    names = sorted(known)
    return UserError(f"{kind} {name!r} is not known.{suggest(name, names)} Available: {', '.join(names)}.")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" with the known name closest to a misspelt one, or nothing if none is close."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""
