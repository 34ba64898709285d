"""A test certificate authority, the coordinator's certificate, and a key pair for each site.

DIR/ca.pem, ca.key              the authority; its key can be kept offline
DIR/server.pem, server.key      the coordinator's certificate
DIR/sites/, DIR/revoked/        the keys of sites: see site_keys.py
"""

from __future__ import annotations

import datetime
import ipaddress
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedwild.core.errors import UserError
from fedwild.core.files import check_private
from fedwild.core.names import seen_names
from fedwild.core.text import cut
from fedwild.sites.expiry import certificate_validity, expiry_warning, now
from fedwild.sites.key_files import NewFile, write_all
from fedwild.sites.site_keys import KeyFolder, SiteKey, check_site_name, describe_keys, new_site_key, registered_files

LOOPBACK = ("localhost", "127.0.0.1")
DAYS = 365
RENEWALS = {
    "ca.pem": "delete ca.* and server.*, run `fedwild flower keys {folder}`, and give every site the new ca.pem",
    "server.pem": "delete it and run `fedwild flower keys {folder} --host HOST`, then restart the coordinator",
}
"""What to do before a certificate expires."""
HOST_NAME = re.compile(r"[A-Za-z0-9*]([A-Za-z0-9.*-]{0,252})")


def make_keys(folder: Path, hosts: Sequence[str], sites: Sequence[str], days: int = DAYS) -> list[Path]:
    """Write the missing files: an authority and a certificate in a new folder, and a key pair for each site.

    Everything is checked and created in memory first. If a file cannot be written, none is left behind.
    """
    registered = registered_files(folder)
    seen = seen_names(registered, f"{str(folder)!r}")
    for name in dict.fromkeys(sites):
        check_site_name(name, "--site", seen)
        if name in registered or (folder / "sites" / f"{name}.key").exists():
            raise UserError(f"--site {name!r} already has a key in {str(folder)!r}: replace it with --renew {name}.")
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
            files += new_site_key(folder, name, days)
        (folder / "sites").mkdir(parents=True, exist_ok=True)
        write_all(files)
    except OSError as error:
        raise UserError(f"keys cannot be written to {str(folder)!r}: {error.strerror or error}.") from error
    return [file.path for file in files]


def check_certificates(folder: Path) -> list[str]:
    """Reject a folder without valid certificates of the authority and the coordinator; return warnings of expiry."""
    missing = [name for name in ("ca.pem", "server.pem", "server.key") if not (folder / name).is_file()]
    if missing:
        raise UserError(
            f"engine.certificates = {str(folder)!r} has no {', '.join(missing)}: create them with `fedwild flower "
            f"keys {folder}`."
        )
    check_private(folder / "server.key", f"engine.certificates: {str(folder / 'server.key')!r}")
    warnings = []
    for name, advice in RENEWALS.items():
        what = f"engine.certificates: {str(folder / name)!r}"
        warnings.append(
            expiry_warning(what, certificate_validity(folder / name, what)[1], advice.format(folder=folder))
        )
    warnings += [key_warning(folder, key) for key in KeyFolder(folder).all()]
    return [warning for warning in warnings if warning is not None]


def list_keys(folder: Path) -> list[str]:
    """Return a line for each certificate and key: its name, and when it was created, expires and was revoked."""
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} is not a folder with keys: create one with `fedwild flower keys {folder}`.")
    rows: list[tuple[str, datetime.datetime | None, datetime.datetime | None, str]] = []
    for name in RENEWALS:
        if (folder / name).exists():
            what = repr(str(folder / name))
            begin, end = certificate_validity(folder / name, what)
            rows.append((name, begin, end, "expired" if end <= now() else ""))
    for key in describe_keys(folder):
        revoked = key.dates.get("revoked")
        state = f"revoked {revoked:%Y-%m-%d}" if revoked else "expired" if key.is_expired else ""
        rows.append((key.name, key.dates.get("created"), key.expires, state))
    lines = [
        ("name", "created", "expires", "state"),
        *((n, _day(b), _day(e), state or "valid") for n, b, e, state in rows),
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _day(date: datetime.datetime | None) -> str:
    return f"{date:%Y-%m-%d}" if date else "-"


def key_warning(folder: Path, key: SiteKey) -> str | None:
    """Return a warning if a site's key has expired, or does so soon."""
    try:
        advice = f"create a new one with `fedwild flower keys {folder} --renew {key.name}`"
        return None if key.expires is None else expiry_warning(f"the key of site {key.name!r}", key.expires, advice)
    except UserError as error:
        # One site without a valid key does not stop the others.
        return error.problems[0]


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


def _files(stem: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> list[NewFile]:
    """Return a private key and its certificate as files."""
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = certificate.public_bytes(serialization.Encoding.PEM)
    return [NewFile(stem.with_suffix(".key"), private, 0o600), NewFile(stem.with_suffix(".pem"), public, 0o644)]
