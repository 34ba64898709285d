"""The keys of sites: which are registered, when they expire, and which are revoked.

DIR/sites/NAME.key, NAME.pub    a site's private key, and the public key that the coordinator registers
DIR/revoked/NAME-DIGEST.pub     a public key that is never accepted again, whatever is in DIR/sites

The dates of a key are in the comment of its public key: `created=... expires=... revoked=...`. A public key without
`expires` does not expire. Keys in the OpenSSH format have no dates of their own, so the coordinator enforces them.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedwild.core.errors import UserError
from fedwild.core.files import check_private, check_regular
from fedwild.core.names import Seen, check_name
from fedwild.core.storage import read_regular
from fedwild.core.text import cut
from fedwild.sites.expiry import now
from fedwild.sites.key_files import NewFile, replace_all

MAX_KEY_BYTES = 100_000
DATES = ("created", "expires", "revoked")
SITE_NAME = re.compile(r"[\w.+-]+")


@dataclass(frozen=True)
class SiteKey:
    """A site's public key."""

    name: str
    path: Path
    key: ec.EllipticCurvePublicKey
    dates: dict[str, datetime.datetime] = field(default_factory=dict)
    """`created`, `expires` and `revoked`, as far as they are known."""

    @property
    def pem(self) -> bytes:
        """The key as Flower sends it."""
        form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        return self.key.public_bytes(*form)

    @property
    def expires(self) -> datetime.datetime | None:
        return self.dates.get("expires")

    @property
    def is_expired(self) -> bool:
        return self.expires is not None and self.expires <= now()

    @property
    def line(self) -> bytes:
        """The key in the OpenSSH format, without a comment."""
        return self.key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -lf` prints it."""
        digest = hashlib.sha256(base64.b64decode(self.line.split()[1])).digest()
        return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def check_site_name(name: str, option: str, seen: Seen | None = None) -> None:
    """Reject a name that cannot be a site's, such as one with a slash."""
    if not SITE_NAME.fullmatch(name) or name in {".", ".."}:
        raise UserError(f"{option} {cut(name, 100)!r} is not allowed: use letters, digits, '.', '_', '+' and '-' only.")
    check_name(name, option, "client", seen)


def check_site_key(path: Path) -> None:
    """Reject a file that is not a site's private key in the format of Flower's SuperNode."""
    advice = "create one with `fedwild flower keys DIR --site NAME` (DIR/sites/NAME.key)"
    try:
        check_regular(path, f"--key {str(path)!r}", MAX_KEY_BYTES)
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise UserError(f"--key {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"--key {str(path)!r} is not a private key without a passphrase: {advice}.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"--key {str(path)!r} is not on an elliptic curve that Flower supports (NIST): {advice}.")
    check_private(path, f"--key {str(path)!r}")


def new_site_key(folder: Path, name: str, days: int) -> list[NewFile]:
    """Return the files of a new key pair, valid for so many days, in the format of Flower's SuperNode."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    path = folder / "sites" / f"{name}.pub"
    dates = {"created": now(), "expires": now() + datetime.timedelta(days=days)}
    public = SiteKey(name, path, key.public_key(), dates)
    return [NewFile(path.with_suffix(".key"), private, 0o600), NewFile(path, _text(public), 0o644)]


def registered_files(folder: Path) -> dict[str, Path]:
    """Return the public key files in the folder, by site."""
    return {path.stem: path for path in sorted((folder / "sites").glob("*.pub"))}


def read_site_key(path: Path, name: str) -> SiteKey:
    """Return the public key in a file."""
    try:
        data = read_regular(path, MAX_KEY_BYTES)
        key = serialization.load_ssh_public_key(data)
        comment = data.decode().split()[2:]
    except OSError as error:
        raise UserError(f"key {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UserError(f"key {str(path)!r} cannot be registered: it is not a public key.") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"key {str(path)!r} cannot be registered: it is not on an elliptic curve (NIST).")
    dates = dict(word.split("=", 1) for word in comment if "=" in word)
    known = {what: _date(text, path) for what, text in dates.items() if what in DATES}
    return SiteKey(name, path, key, known)


def revoked_keys(folder: Path) -> list[SiteKey]:
    """Return the keys that are never accepted again."""
    return [read_site_key(path, path.stem.rpartition("-")[0]) for path in sorted((folder / "revoked").glob("*.pub"))]


class KeyFolder:
    """The keys of a folder, which is read again when a file in it changes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._seen: object = None
        self._keys: list[SiteKey] = []
        self.problems: list[str] = []
        """Why files are no usable keys."""

    def valid(self) -> dict[str, SiteKey]:
        """Return the keys that are neither revoked nor expired now, by site."""
        return {key.name: key for key in self.all() if not key.is_expired}

    def all(self) -> list[SiteKey]:
        """Return the keys that are not revoked."""
        if (seen := self._signature()) != self._seen:
            self._read()
            self._seen = seen
        return self._keys

    def _read(self) -> None:
        self._keys, self.problems = [], []
        try:
            revoked = {key.pem for key in revoked_keys(self.path)}
        except UserError as error:
            # A revoked key that cannot be read could be any of them.
            self.problems = [*error.problems]
            return
        for name, path in registered_files(self.path).items():
            try:
                key = read_site_key(path, name)
            except UserError as error:
                self.problems += error.problems
                continue
            if key.pem not in revoked:
                self._keys.append(key)

    def _signature(self) -> object:
        """Return what changes whenever a file is added, removed, replaced or written."""
        files = [path for inner in ("sites", "revoked") for path in sorted((self.path / inner).glob("*.pub"))]
        seen = []
        for path in files:
            with contextlib.suppress(OSError):
                found = path.stat()
                seen.append((path, found.st_ino, found.st_mtime_ns, found.st_size))
        return seen


def revoke(folder: Path, names: Sequence[str]) -> list[Path]:
    """Revoke the keys of sites, and return the files that say so. A running coordinator cuts these sites off."""
    written = [file for name in names for file in _revocation(folder, _registered(folder, name, "--revoke"))]
    replace_all(folder, written)
    for name in names:
        (folder / "sites" / f"{name}.pub").unlink(missing_ok=True)
        (folder / "sites" / f"{name}.key").unlink(missing_ok=True)
    return [file.path for file in written]


def renew(folder: Path, names: Sequence[str], days: int) -> list[Path]:
    """Replace the keys of sites, and return the new files. The old keys are revoked."""
    keys = [_registered(folder, name, "--renew") for name in names]
    # The old key is revoked first: if the command is interrupted, it is not accepted any more.
    replace_all(folder, [file for key in keys for file in _revocation(folder, key)])
    written = [file for name in names for file in new_site_key(folder, name, days)]
    replace_all(folder, written)
    return [file.path for file in written]


def describe_keys(folder: Path) -> list[SiteKey]:
    """Return all keys of a folder: those of sites, then those that are revoked."""
    keys = KeyFolder(folder)
    current = keys.all()
    if keys.problems:
        raise UserError(*keys.problems)
    return current + revoked_keys(folder)


def _registered(folder: Path, name: str, option: str) -> SiteKey:
    files = registered_files(folder)
    if name not in files:
        raise UserError(
            f"{option} {cut(name, 100)!r} has no key in {str(folder / 'sites')!r}. Sites: {', '.join(files) or 'none'}."
        )
    return read_site_key(files[name], name)


def _revocation(folder: Path, key: SiteKey) -> list[NewFile]:
    digest = hashlib.sha256(key.pem).hexdigest()[:16]
    revoked = SiteKey(
        key.name, folder / "revoked" / f"{key.name}-{digest}.pub", key.key, {**key.dates, "revoked": now()}
    )
    return [NewFile(revoked.path, _text(revoked), 0o644)]


def _text(key: SiteKey) -> bytes:
    """Return a public key with its dates as a line."""
    comment = " ".join(f"{what}={date.isoformat().replace('+00:00', 'Z')}" for what, date in key.dates.items())
    return key.line + f" {comment}\n".encode()


def _date(text: str, path: Path) -> datetime.datetime:
    try:
        date = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"key {str(path)!r}: {cut(text, 40)!r} is not a date: write it as 2027-12-31.") from None
    return date if date.tzinfo else date.replace(tzinfo=datetime.UTC)
