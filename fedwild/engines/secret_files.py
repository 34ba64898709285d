"""The files that keep clients' secrets of a secure sum from one step to the next, and no longer than the round."""

from __future__ import annotations

import os
from pathlib import Path


def secrets_file(folder: Path, client: str) -> Path:
    """Return the file of a client's secrets of the current round."""
    return folder / f"secrets-{client}.json"


def read_secrets(folder: Path, client: str) -> bytes | None:
    """Return a client's secrets, or None if it has none."""
    try:
        return secrets_file(folder, client).read_bytes()
    except FileNotFoundError:
        return None


def write_secrets(folder: Path, client: str, secrets: bytes) -> None:
    """Replace a client's secrets; delete them if `secrets` is empty. Only the owner of the file can read it.

    They survive the end of a process. A power failure may lose them: the client then drops out of the round.
    """
    path = secrets_file(folder, client)
    if not secrets:
        path.unlink(missing_ok=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secrets)
    os.replace(temporary, path)


def remove_secrets(folder: Path) -> None:
    """Delete the secrets of all clients in a folder, after a round."""
    for path in folder.glob("secrets-*.json"):
        path.unlink()
