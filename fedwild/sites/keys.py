"""A test certificate authority, the coordinator's certificate, and a key pair for each site.

DIR/ca.pem, ca.key              the authority; its key can be kept offline
DIR/server.pem, server.key      the coordinator's certificate
DIR/sites/NAME.key, NAME.pub    a site's private key, and the public key that the coordinator registers
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedwild.core.errors import UserError
from fedwild.core.files import check_private, check_regular
from fedwild.core.names import Seen, check_name, seen_names
from fedwild.core.text import cut

LOOPBACK = ("localhost", "127.0.0.1")
DAYS = 365
MAX_KEY_BYTES = 100_000
SITE_NAME = re.compile(r"[\w.+-]+")
HOST_NAME = re.compile(r"[A-Za-z0-9*]([A-Za-z0-9.*-]{0,252})")


@dataclass(frozen=True)
class NewFile:
    """A file to write, with its permissions."""

    path: Path
    data: bytes
    mode: int


def make_keys(folder: Path, hosts: Sequence[str], sites: Sequence[str], days: int = DAYS) -> list[Path]:
    """Write the missing files: an authority and a certificate in a new folder, and a key pair for each site.

    Everything is checked and created in memory first. If a file cannot be written, none is left behind.
    """
    registered = registered_keys(folder)
    seen = seen_names(registered, f"{str(folder)!r}")
    for name in dict.fromkeys(sites):
        check_site_name(name, "--site", seen)
        if name in registered or (folder / "sites" / f"{name}.key").exists():
            raise UserError(f"--site {name!r} already has a key in {str(folder)!r}: delete it to create a new one.")
    if hosts and (folder / "server.pem").exists():
        raise UserError(f"{str(folder)!r} already has a certificate: delete server.pem to create one for other hosts.")
    alternatives = [_alternative(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    files: list[NewFile] = []
    try:
        has_authority = (folder / "ca.pem").exists()
        if not has_authority:
            authority = _new_authority(days)
            files += _files(folder / "ca", *authority)
        if not (folder / "server.pem").exists():
            signer = _signer(folder) if has_authority else authority
            files += _files(folder / "server", *_new_certificate(alternatives, days, *signer))
        for name in dict.fromkeys(sites):
            files += _site_files(folder / "sites", name)
        (folder / "sites").mkdir(parents=True, exist_ok=True)
        write_all(files)
    except OSError as error:
        raise UserError(f"keys cannot be written to {str(folder)!r}: {error.strerror or error}.") from error
    return [file.path for file in files]


def check_site_name(name: str, option: str, seen: Seen | None = None) -> None:
    """Reject a name that cannot be a site's, such as one with a slash."""
    if not SITE_NAME.fullmatch(name) or name in {".", ".."}:
        raise UserError(f"{option} {cut(name, 100)!r} is not allowed: use letters, digits, '.', '_', '+' and '-' only.")
    check_name(name, option, "client", seen)


def registered_keys(folder: Path) -> dict[str, Path]:
    """Return the public key files in the folder, by site."""
    return {path.stem: path for path in sorted((folder / "sites").glob("*.pub"))}


def check_certificates(folder: Path) -> None:
    """Reject a folder without the authority's and the coordinator's certificates."""
    missing = [name for name in ("ca.pem", "server.pem", "server.key") if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"engine.certificates = {str(folder)!r} has no {', '.join(missing)}: create them with `fedwild flower "
            f"keys {folder}`."
        )
    check_private(folder / "server.key", f"engine.certificates: {str(folder / 'server.key')!r}")


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


def _new_authority(days: int) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedwild test authority")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = _validity(
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()), days
    )
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return certificate, key


def _new_certificate(
    hosts: Sequence[x509.GeneralName], days: int, authority: x509.Certificate, signer: Any
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the coordinator's certificate for all names and addresses under which sites may reach it, and its key."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, str(hosts[0].value)[:64])])
    builder = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(authority.subject).public_key(key.public_key())
    )
    certificate = (
        _validity(builder, days)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),  # type: ignore[arg-type]
            critical=False,
        )
        .sign(signer, hashes.SHA384())
    )
    return certificate, key


def _signer(folder: Path) -> tuple[x509.Certificate, Any]:
    """Return the authority's certificate and key."""
    if not (folder / "ca.key").exists():
        raise UserError(
            f"{str(folder / 'ca.key')!r} is missing, so no certificate can be signed: restore it, or delete "
            f"{str(folder / 'ca.pem')!r} to create a new authority, whose ca.pem all sites then need."
        )
    check_private(folder / "ca.key", repr(str(folder / "ca.key")))
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        return certificate, serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(
            f"{str(folder)!r}: ca.pem and ca.key must be a certificate and its private key without a passphrase. "
            "Delete both to create a new authority."
        ) from error


def _alternative(host: str) -> x509.GeneralName:
    """Return a host as a certificate names it."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOST_NAME.fullmatch(host):
        raise UserError(f"--host {cut(host, 100)!r} is not allowed: give a host name or an IP address.")
    return x509.DNSName(host)


def _validity(builder: x509.CertificateBuilder, days: int) -> x509.CertificateBuilder:
    """Set the validity: from an hour ago, since clocks differ, for so many days from now."""
    now = datetime.datetime.now(datetime.UTC)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _site_files(folder: Path, name: str) -> list[NewFile]:
    """Return a new key pair in the format of Flower's SuperNode."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return [NewFile(folder / f"{name}.key", private, 0o600), NewFile(folder / f"{name}.pub", public + b"\n", 0o644)]


def _files(stem: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> list[NewFile]:
    """Return a private key and its certificate as files."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    return [NewFile(stem.with_suffix(".key"), private, 0o600), NewFile(stem.with_suffix(".pem"), public, 0o644)]


def write_all(files: Sequence[NewFile]) -> None:
    """Write all files or none: those that did not exist before are deleted if one cannot be written."""
    created = [file.path for file in files if not file.path.exists()]
    try:
        for file in files:
            _write(file)
    except OSError:
        for path in created:
            path.unlink(missing_ok=True)
        raise


def _write(new: NewFile) -> None:
    """Write a file that never has wider permissions than its mode, not even for a moment."""
    with open(os.open(new.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, new.mode), "wb") as file:
        # os.open does not change the mode of a file that exists.
        os.fchmod(file.fileno(), new.mode)
        file.write(new.data)
