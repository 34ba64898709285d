"""The signed manifest of a finished run: who vouches for its settings, model, clients' states and figures.

manifest.json holds the SHA-256 of these files and an Ed25519 signature. It is written before result.json, which marks
the run as finished, so a run that is killed in between is unfinished. A file may have two digests while a class is
renamed: a kill between two writes leaves a folder that is valid.
"""

from __future__ import annotations

import datetime
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError
from fedwild.core.seal import digest_of, open_json, seal_json
from fedwild.core.storage import open_regular, read_regular, write_atomically
from fedwild.core.version import __version__
from fedwild.runs.signing import fingerprint, sign, signer_of, standing

FILE = "manifest.json"
SIGNED = ("run.json", "model.safetensors", "result.json")
"""The files that every manifest names. Methods with a model per client have the clients' states, too."""
PURPOSE, SIGNED_BY = "manifest 1", "signed_by"
MAX_BYTES = 100_000_000
MAX_FILE_BYTES = 2**36
Digest = dict[str, Any]
"""The `sha256` and the number of `bytes` of a file."""


@dataclass(frozen=True)
class Manifest:
    """The digests of a run's files, and the public key of who signed them."""

    files: Mapping[str, list[Digest]]
    signer: str


def write_manifest(folder: Path, files: Mapping[str, list[Digest]]) -> None:
    """Sign these digests of a run's files as the user."""
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    table = {"fedwild": __version__, "time": time, "files": dict(files)}
    write_atomically(folder / FILE, seal_json({**table, SIGNED_BY: sign(PURPOSE, table)}))


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a run, or None if it has none; raise a `UserError` if it is damaged or forged."""
    path = folder / FILE
    try:
        table: dict[str, Any] = open_json(read_regular(path, MAX_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise UserError(f"{str(path)!r} is damaged ({error}): restore it from a copy.") from None
    signed, files = table.pop(SIGNED_BY, None), table.get("files")
    signer = signer_of(PURPOSE, table, signed)
    if signer is None:
        raise UserError(f"{str(path)!r} has no valid signature: restore it from a copy.")
    if not isinstance(files, dict) or not all(isinstance(digests, list) for digests in files.values()):
        raise UserError(f"{str(path)!r} is damaged (it names no files): restore it from a copy.")
    return Manifest(files, signer)


def check_signed(folder: Path, names: Iterable[str], anybody: bool = False) -> None:
    """Reject files of a finished run that are not as somebody whom the user trusts has signed them.

    `anybody` accepts a run that is not signed, or signed by a stranger; changed files are rejected all the same.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        if anybody:
            return
        raise UserError(
            f"run {str(folder)!r} has no {FILE}, so nobody vouches for its model: restore it from a copy, or, if you "
            f"have reason to trust the folder, sign it yourself: `fedwild sign {folder}`."
        )
    if not anybody and standing(manifest.signer) is None:
        raise UserError(
            f"run {str(folder)!r} is signed with a key that you do not trust ({fingerprint(manifest.signer)}): if its "
            f"owner confirms this fingerprint over another channel, run `fedwild trust {folder}`."
        )
    for name in names:
        if not _is_one_of(folder / name, manifest.files.get(name, [])):
            raise UserError(
                f"{str(folder / name)!r} is not the file that was signed: restore it from a copy, or, if you changed "
                f"it yourself, sign it again: `fedwild sign {folder}`."
            )


def digest_of_bytes(data: bytes) -> Digest:
    return {"sha256": digest_of([data]), "bytes": len(data)}


def digest_of_file(path: Path) -> Digest:
    """Return the SHA-256 and the size of a file."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_FILE_BYTES:
                raise OSError(None, f"it has {size} bytes, and at most {MAX_FILE_BYTES} are allowed")
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "bytes": size}
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from None


def _is_one_of(path: Path, digests: list[Digest]) -> bool:
    """Whether a file has one of these digests. A file of another size is not read: it may be a terabyte."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from None
    sizes = [digest.get("bytes") for digest in digests if isinstance(digest, dict)]
    return size in sizes and digest_of_file(path) in digests
