"""Which import paths may be resolved: `package.module:Class` in a config runs the code that it names.

A config that the user of this machine wrote is trusted. What comes from elsewhere, such as a job from a coordinator or
a run folder that somebody sent, is read inside `only(...)`: an import path that is not listed is refused before its
module is imported. Scopes can be nested; a path must be allowed by all of them. They hold for the current thread; a
process that serves others is restricted as a whole by `only_in_process`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from fedwild.core.errors import UserError


class UntrustedCode(UserError):
    """An import path that may not be resolved here."""


@dataclass(frozen=True)
class Scope:
    """The import paths that are allowed, and the end of the sentence that refuses another one."""

    paths: frozenset[str]
    reason: str


_scopes: ContextVar[tuple[Scope, ...]] = ContextVar("trust_scopes", default=())
_process_scopes: list[Scope] = []
_code_trusted: ContextVar[bool] = ContextVar("code_trusted", default=False)


@contextlib.contextmanager
def only(paths: Iterable[str], reason: str) -> Iterator[None]:
    """Allow only these import paths inside. `reason` says why another one is refused, and what to do."""
    token = _scopes.set((*_scopes.get(), Scope(frozenset(paths), reason)))
    try:
        yield
    finally:
        _scopes.reset(token)


@contextlib.contextmanager
def only_in_process(paths: Iterable[str], reason: str) -> Iterator[None]:
    """Allow only these import paths in all threads of this process."""
    scope = Scope(frozenset(paths), reason)
    _process_scopes.append(scope)
    try:
        yield
    finally:
        _process_scopes.remove(scope)


@contextlib.contextmanager
def trusting_code() -> Iterator[None]:
    """Trust the code that run folders name, as `--trust-code` does."""
    token = _code_trusted.set(True)
    try:
        yield
    finally:
        _code_trusted.reset(token)


def is_code_trusted() -> bool:
    """Whether the user trusts the code that run folders name."""
    return _code_trusted.get()


def check_import(kind: str, path: str) -> None:
    """Raise `UntrustedCode` unless this import path may be resolved here."""
    for scope in (*_process_scopes, *_scopes.get()):
        if path not in scope.paths:
            raise UntrustedCode(f"{kind} {path[:200]!r} is an import path, {scope.reason}.")


def import_paths(table: Mapping[str, Any]) -> list[str]:
    """Return the names in a config's table that may be import paths, sorted. Data sets are never imported."""
    named = (section.get("name") for key, section in table.items() if key != "data" and isinstance(section, Mapping))
    return sorted({name for name in named if isinstance(name, str) and ":" in name})
