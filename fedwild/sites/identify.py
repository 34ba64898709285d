"""Which site sent a request: the signed headers of Flower's SuperNodes against the registered public keys.

A SuperNode sends its public key, the time, and its signature of the time with every request. The proxy can therefore
reject strangers before it reads a byte of the body.
"""

from __future__ import annotations

import datetime
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedwild.sites.site_keys import KeyFolder

PUBLIC_KEY, TIMESTAMP, SIGNATURE = "flwr-public-key", "flwr-timestamp", "flwr-signature"
"""The headers of a SuperNode."""
MAX_AGE_SECONDS = 305.0
MAX_AHEAD_SECONDS = 5.0
"""The difference between a site's clock and ours that Flower allows."""


class NotRegistered(Exception):
    """A request that no registered site has signed. The message is for the site's operator."""


class RegisteredSites:
    """The sites whose public keys are in a folder. The folder is read again when it changes: a revoked, expired or
    deleted key is invalid from then on, and a new one is valid."""

    def __init__(self, certificates: Path) -> None:
        self._keys = KeyFolder(certificates)

    def site_of(self, headers: Mapping[str, str]) -> str:
        """Return the name of the site that signed a request with these headers."""
        registered = {key.pem: key for key in self._keys.valid().values()}
        try:
            found = registered.get(b64decode(headers[PUBLIC_KEY], validate=True))
            signature, time = b64decode(headers[SIGNATURE], validate=True), headers[TIMESTAMP]
            signed = datetime.datetime.fromisoformat(time)
            age = (datetime.datetime.now(datetime.UTC) - signed).total_seconds()
        except (KeyError, ValueError, TypeError, OverflowError):
            raise NotRegistered("the request is not signed by a site") from None
        if found is None:
            raise NotRegistered("its key is not registered")
        if not -MAX_AHEAD_SECONDS < age < MAX_AGE_SECONDS:
            raise NotRegistered(f"its clock differs from the coordinator's by {abs(age):.0f} seconds")
        try:
            found.key.verify(signature, time.encode("ascii"), ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, UnicodeEncodeError):
            raise NotRegistered("its signature is invalid") from None
        return found.name
