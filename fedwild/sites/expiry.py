"""Dates of expiry: what is expired is refused, what expires soon gives a warning."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509

from fedwild.core.errors import UserError
from fedwild.core.storage import read_regular

WARN_DAYS = 30
MAX_CERTIFICATE_BYTES = 1_000_000


def now() -> datetime.datetime:
    """Return the time in whole seconds."""
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def expiry_warning(what: str, expires: datetime.datetime, advice: str) -> str | None:
    """Return a warning if `what` expires within 30 days; raise a `UserError` if it is expired."""
    if expires <= now():
        raise UserError(f"{what} expired on {expires:%Y-%m-%d}: {advice}.")
    return f"{what} expires on {expires:%Y-%m-%d}: {advice}." if is_near(expires) else None


def is_near(expires: datetime.datetime) -> bool:
    """Whether a date is within the next 30 days."""
    return expires - now() <= datetime.timedelta(days=WARN_DAYS)


def certificate_validity(path: Path, what: str) -> tuple[datetime.datetime, datetime.datetime]:
    """Return from when to when the last certificate of a file is valid: an authority's file may hold its successor."""
    try:
        certificates = x509.load_pem_x509_certificates(read_regular(path, MAX_CERTIFICATE_BYTES))
    except OSError as error:
        raise UserError(f"{what} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise UserError(f"{what} is not a certificate: create one with `fedwild flower keys DIR`.") from error
    last = max(certificates, key=lambda certificate: certificate.not_valid_after_utc)
    return last.not_valid_before_utc, last.not_valid_after_utc
