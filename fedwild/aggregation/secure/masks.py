"""Keys and masks: X25519 agreement, HKDF, sealed shares, and the key stream of AES-256 in counter mode.

Everything here comes from `cryptography`. Keys are drawn from the system's random source, never from the run's seed:
they cancel in the sum, so that results do not depend on them.
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedwild.core.errors import BadReply

KEY_BYTES = 32
NONCE_BYTES = 12
SEAL_BYTES = NONCE_BYTES + 16
"""What `seal` adds to a text: its nonce and its tag."""
CHUNK = 2**15
"""Elements of a mask that are expanded at a time, so that they stay in the cache."""


def new_secret() -> bytes:
    """Return 32 random bytes, which may serve as a private key."""
    return secrets.token_bytes(KEY_BYTES)


def public_key(private: bytes) -> bytes:
    """Return the X25519 public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Return the key of 32 bytes that two parties derive from their X25519 keys for one purpose."""
    try:
        shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        # A point of small order would give a key that everybody knows.
        raise BadReply("a public key is not a valid X25519 key") from error
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"fedwild secure sums: " + purpose).derive(shared)


def commit(secret: bytes, purpose: bytes) -> bytes:
    """Return a hash that fixes a random secret without revealing it."""
    return hashlib.sha256(b"fedwild commitment: " + purpose + secret).digest()


def seal(key: bytes, text: bytes, purpose: bytes) -> bytes:
    """Return the text encrypted and authenticated together with its purpose (ChaCha20-Poly1305)."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, purpose)


def unseal(key: bytes, sealed: bytes, purpose: bytes) -> bytes:
    """Return the text of `seal`; raise `BadReply` if it, its key or its purpose was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], purpose)
    except (InvalidTag, ValueError) as error:
        raise BadReply("a share was changed on its way") from error


def add_mask(vector: np.ndarray, key: bytes, sign: int) -> None:
    """Add (sign 1) or subtract (sign -1) the mask of a key, in place and modulo 2**64, for a vector uint64 (d,).

    The mask is the key stream of AES-256 in counter mode, in little-endian words. Each key serves one mask only, so the
    counter begins at zero.
    """
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    # The cipher asks for room for one more block.
    zeros, words = memoryview(bytes(8 * CHUNK)), np.empty(CHUNK + 2, dtype="<u8")
    change = np.add if sign > 0 else np.subtract
    for begin in range(0, len(vector), CHUNK):
        part = vector[begin : begin + CHUNK]
        stream.update_into(zeros[: 8 * len(part)], words.view(np.uint8).data)
        change(part, words[: len(part)], out=part)
