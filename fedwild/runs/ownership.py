"""Which run folders were made on this machine by this user: only their import paths are resolved without being asked.

A new run is marked in run.json with the user's signature of its id, its config and the address of its Ray cluster. A
folder from elsewhere has the mark of somebody else: the code that it names does not run unless the user says so with
`--trust-code`. The address of a Ray cluster counts as code, because a cluster can send pickled objects. To trust
somebody's key (`fedwild trust`) is to trust their models, not their code.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedwild.core import trust
from fedwild.core.errors import UserError
from fedwild.runs.signing import own_key, sign, signer_of, standing

ID, MARK, CLUSTER = "id", "made_by", "cluster"
PURPOSE = "run 1"


def mark(facts: Mapping[str, Any], address: str | None) -> dict[str, Any]:
    """Return the fields of run.json that mark a new run as the user's own.

    `facts` are the other contents of run.json, `address` is that of its Ray cluster.
    """
    number = str(facts.get(ID) or secrets.token_hex(16))
    return {ID: number, MARK: {CLUSTER: address, **sign(PURPOSE, [number, facts["config"], address])}}


def maker_of(facts: Mapping[str, Any]) -> str | None:
    """Return the public key of who made a run, or None if it has no valid mark."""
    found = facts.get(MARK)
    content = [facts.get(ID), facts.get("config"), found.get(CLUSTER) if isinstance(found, Mapping) else None]
    return signer_of(PURPOSE, content, found)


def is_own(facts: Mapping[str, Any], address: str | None) -> bool:
    """Whether the mark in run.json is that of this user for this config and this cluster."""
    maker = maker_of(facts)
    return maker is not None and maker == own_key() and facts[MARK].get(CLUSTER) == address


def check_maker(path: Path, facts: Mapping[str, Any]) -> None:
    """Reject the model of an unfinished run, which is not signed yet, unless the user trusts who made the run."""
    maker = maker_of(facts)
    if maker is None or standing(maker) is None:
        raise UserError(
            f"run {str(path)!r} is unfinished and was not made by you or somebody you trust, so nobody vouches for its "
            f"model: run `fedwild resume {path}` first, which needs its data, or use a finished run."
        )


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
