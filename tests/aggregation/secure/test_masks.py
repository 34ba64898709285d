"""Keys agree, masks cancel and look uniform, sealed texts cannot be changed."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from fedwild.aggregation.secure.masks import CHUNK, add_mask, agree, new_secret, public_key, seal, unseal
from fedwild.core.errors import BadReply


def test_both_sides_agree_on_one_key_per_purpose() -> None:
    a, b = new_secret(), new_secret()
    assert agree(a, public_key(b), b"x") == agree(b, public_key(a), b"x") != agree(a, public_key(b), b"y")


def ladder(private: bytes, u: int) -> bytes:
    """The Montgomery ladder of RFC 7748, section 5, with Python's integers."""
    p, scalar = 2**255 - 19, bytearray(private)
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    k, x2, z2, x3, z3 = int.from_bytes(scalar, "little"), 1, 0, u, 1
    for bit in range(254, -1, -1):
        if k >> bit & 1:
            x2, x3, z2, z3 = x3, x2, z3, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        x3, z3 = (d * a + c * b) ** 2 % p, u * (d * a - c * b) ** 2 % p
        x2, z2 = a * a * b * b % p, (a * a - b * b) * (a * a + 121665 * (a * a - b * b)) % p
        if k >> bit & 1:
            x2, x3, z2, z3 = x3, x2, z3, z2
    return (x2 * pow(z2, p - 2, p) % p).to_bytes(32, "little")


def test_public_keys_are_those_of_the_standard() -> None:
    for _ in range(5):
        private = new_secret()
        assert public_key(private) == ladder(private, 9)


@pytest.mark.parametrize("bad", [bytes(32), b"\x01" + bytes(31), b"short"])
def test_keys_of_small_order_and_wrong_size_are_rejected(bad: bytes) -> None:
    with pytest.raises(BadReply, match="not a valid X25519 key"):
        agree(new_secret(), bad, b"x")


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, 3 * CHUNK - 5])
def test_a_mask_cancels_and_is_the_key_stream_of_one_call(size: int) -> None:
    key = new_secret()
    vector = np.random.default_rng(0).integers(0, 2**64, size, dtype=np.uint64)
    masked = vector.copy()
    add_mask(masked, key, 1)
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * size))
    with np.errstate(over="ignore"):
        assert np.array_equal(masked, vector + np.frombuffer(stream, "<u8"))
    add_mask(masked, key, -1)
    assert np.array_equal(masked, vector)


def test_a_masked_vector_is_statistically_uniform() -> None:
    """Chi-squared of every byte of the masked words of a constant vector, for a fixed key."""
    vector = np.full(200_000, 42, dtype=np.uint64)
    add_mask(vector, bytes(range(32)), 1)
    for byte in vector.view(np.uint8).reshape(-1, 8).T:
        assert stats.chisquare(np.bincount(byte, minlength=256)).pvalue > 1e-4
    assert stats.chisquare(np.bincount(np.full(200_000, 42), minlength=256)).pvalue < 1e-4


def test_sealed_texts_cannot_be_changed() -> None:
    key = new_secret()
    sealed = seal(key, b"text", b"purpose")
    assert unseal(key, sealed, b"purpose") == b"text"
    flipped = bytes([*sealed[:-1], sealed[-1] ^ 1])
    for wrong in (
        (new_secret(), sealed, b"purpose"),
        (key, sealed, b"other"),
        (key, flipped, b"purpose"),
        (key, b"", b""),
    ):
        with pytest.raises(BadReply, match="was changed on its way"):
            unseal(*wrong)
