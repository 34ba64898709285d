"""Which run folders were made on this machine by this user: only their import paths are resolved without being asked.

A run whose config names code is marked in run.json with an HMAC-SHA256 over its id and its config. The key is a secret
file of the user, which nobody else can read. A folder from elsewhere has no valid mark: the code that it names does not
run unless the user says so with `--trust-code`. The address of a Ray cluster counts as code, because a cluster can send
pickled objects.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedwild.core import trust
from fedwild.core.errors import UserError

KEY_BYTES = 32
ID, MARK = "id", "made_by"


def key_file() -> Path:
    """Return the path of the user's secret key."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "fedwild" / "secret.key"


def mark(facts: Mapping[str, Any], address: str | None) -> dict[str, str]:
    """Return the fields of run.json that mark a new run as the user's own; none if its config names no code.

    `facts` are the other contents of run.json, `address` is that of its Ray cluster. Without a usable key, the run is
    not marked: opening it later needs `--trust-code`.
    """
    if not trust.import_paths(facts["config"]) and address is None:
        return {}
    number = str(facts.get(ID) or secrets.token_hex(16))
    try:
        return {ID: number, MARK: _digest(_make_key(), number, facts["config"], address)}
    except (OSError, UserError):
        return {ID: number}


def is_own(facts: Mapping[str, Any], address: str | None) -> bool:
    """Whether the mark in run.json is that of this user for this config."""
    number, found, config = facts.get(ID), facts.get(MARK), facts.get("config")
    marked = isinstance(number, str) and isinstance(found, str) and found.isascii() and isinstance(config, dict)
    if not marked or not key_file().is_file():
        return False
    return hmac.compare_digest(_digest(_read_key(key_file()), str(number), config, address), str(found))


def code_in(
    path: Path, facts: Mapping[str, Any], address: str | None, also: Iterable[str] = ()
) -> contextlib.AbstractContextManager[None]:
    """Return the scope in which the config of a run folder is read; `also` are import paths that the user named.

    Of a run of the user's own, only the import paths in the marked config are allowed, so a changed config.toml cannot
    name others.
    """
    if trust.is_code_trusted():
        return contextlib.nullcontext()
    if not is_own(facts, address):
        return trust.only(also, not_yours(path))
    reason = f"which run {str(path)!r} did not have when you made it: restore its config.toml, or use --trust-code"
    return trust.only((*trust.import_paths(facts["config"]), *also), reason)


def not_yours(path: Path) -> str:
    """Return the end of the sentence that refuses code of a run folder."""
    return (
        f"and run {str(path)!r} was not made by you on this machine: if you trust it, use --trust-code "
        "(in Python: trust_code=True)"
    )


def _digest(key: bytes, number: str, config: Any, address: str | None) -> str:
    message = json.dumps([number, config, address], sort_keys=True).encode()
    return hmac.new(key, message, "sha256").hexdigest()


def _make_key() -> bytes:
    """Return the user's key, which is created when it is first needed."""
    path = key_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
            # Unlike a rename, a link never replaces the key that another process has made in the meantime.
            os.link(temporary, path)
        finally:
            temporary.unlink()
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    """Return the key of a file that only this user can read."""
    with open(path, "rb") as file:
        about = os.fstat(file.fileno())
        if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
            raise UserError(f"{str(path)!r} must belong to you and be readable by nobody else: run `chmod 600 {path}`.")
        key = file.read()
    if len(key) != KEY_BYTES:
        raise UserError(f"{str(path)!r} is damaged: delete it; runs made with it then need --trust-code.")
    return key
