"""The user's signing key (Ed25519), and the keys of others that the user trusts.

CONFIG/signing.key, signing.pub    created when they are first needed; nobody else can read signing.key
CONFIG/trusted/NAME.pub            public keys of others, in the OpenSSH format

CONFIG is `fedwild` in XDG_CONFIG_HOME or ~/.config. `cryptography` is imported where it is needed: most commands sign
and check nothing.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError
from fedwild.core.storage import read_regular, write_atomically
from fedwild.core.text import cut

MAX_KEY_BYTES = 10_000
KEY, SIGNATURE = "key", "signature"
"""The fields of a signature: the signer's public key, and the signature in base64."""
NAME = re.compile(r"\w[\w.+-]{0,99}")


def config_folder() -> Path:
    """Return the folder of the user's keys."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "fedwild"


def key_file() -> Path:
    """Return the path of the user's private key."""
    return config_folder() / "signing.key"


def sign(purpose: str, content: Any) -> dict[str, str]:
    """Return the user's signature of JSON content. What is signed for one purpose is not valid for another."""
    key = _make_key()
    signature = key.sign(_message(purpose, content))
    return {KEY: _line(key.public_key()), SIGNATURE: base64.b64encode(signature).decode()}


def signer_of(purpose: str, content: Any, signed: Any) -> str | None:
    """Return the public key that made a signature, or None if it is not a valid one of this content."""
    from cryptography.exceptions import InvalidSignature

    if not isinstance(signed, Mapping) or not all(isinstance(signed.get(field), str) for field in (KEY, SIGNATURE)):
        return None
    try:
        key = _public(signed[KEY])
        key.verify(base64.b64decode(signed[SIGNATURE], validate=True), _message(purpose, content))
        return _line(key)
    except (InvalidSignature, ValueError):
        return None


def own_key() -> str | None:
    """Return the user's public key, or None if none was created yet."""
    return _line(_read_key(key_file()).public_key()) if key_file().is_file() else None


def public_file() -> Path:
    """Return the file of the user's public key, to give to others."""
    _make_key()
    return key_file().with_suffix(".pub")


def standing(key: str) -> str | None:
    """Return who a public key belongs to: "you", or the name under which the user trusts it; None for a stranger."""
    if key == own_key():
        return "you"
    return next((repr(name) for name, trusted in trusted_keys().items() if trusted == key), None)


def trusted_keys() -> dict[str, str]:
    """Return the public keys that the user trusts, by name."""
    return {path.stem: read_public(path) for path in sorted((config_folder() / "trusted").glob("*.pub"))}


def trust(name: str, key: str) -> Path:
    """Trust a public key from now on. Returns its file."""
    path = _trusted_file(name)
    if path.exists() and read_public(path) != key:
        raise UserError(f"--name {name!r} is the name of another trusted key: choose another name.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, f"{key} {name}\n".encode())
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written: {error.strerror or error}.") from error
    return path


def distrust(name: str) -> None:
    """Trust a key no longer."""
    if not _trusted_file(name).exists():
        raise UserError(f"--remove {name!r} is not a trusted key. Trusted: {', '.join(trusted_keys()) or 'none'}.")
    _trusted_file(name).unlink()


def read_public(path: Path) -> str:
    """Return the Ed25519 public key in a file, without its comment."""
    try:
        return _line(_public(read_regular(path, MAX_KEY_BYTES).decode()))
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise UserError(f"{str(path)!r} is not a public key (ssh-ed25519): use the signer's signing.pub.") from error


def fingerprint(key: str) -> str:
    """Return the fingerprint of a public key, as `ssh-keygen -lf` prints it."""
    digest = hashlib.sha256(base64.b64decode(key.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _trusted_file(name: str) -> Path:
    if not NAME.fullmatch(name):
        raise UserError(f"{cut(name, 100)!r} is not allowed as a name: use letters, digits, '.', '_', '+' and '-'.")
    return config_folder() / "trusted" / f"{name}.pub"


def _message(purpose: str, content: Any) -> bytes:
    return f"fedwild {purpose}\n{json.dumps(content, sort_keys=True)}".encode()


def _public(text: str) -> Any:
    """Return the Ed25519 public key of a line; raise `ValueError` for anything else."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(text.encode())
    except UnsupportedAlgorithm as error:
        raise ValueError("another kind of key") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError("another kind of key")
    return key


def _line(key: Any) -> str:
    from cryptography.hazmat.primitives import serialization

    text: bytes = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return text.decode()


def _make_key() -> Any:
    """Return the user's private key, which is created when it is first needed."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = key_file()
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(key.private_bytes(*form))
                # Unlike a rename, a link never replaces the key that another process has made in the meantime.
                with contextlib.suppress(FileExistsError):
                    os.link(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            write_atomically(path.with_suffix(".pub"), f"{_line(_read_key(path).public_key())}\n".encode())
        except OSError as error:
            raise UserError(
                f"the key that signs your runs cannot be written to {str(path)!r} ({error.strerror or error}): set "
                "XDG_CONFIG_HOME to a folder that you can write to."
            ) from error
    return _read_key(path)


def _read_key(path: Path) -> Any:
    """Return the private key of a file that only this user can read."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    with open(path, "rb") as file:
        about = os.fstat(file.fileno())
        if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
            raise UserError(f"{str(path)!r} must belong to you and be readable by nobody else: run `chmod 600 {path}`.")
        data = file.read(MAX_KEY_BYTES)
    try:
        key = load_ssh_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"{str(path)!r} is damaged: restore it from a copy, or delete it to create a new key.")
    return key
