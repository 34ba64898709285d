"""Shamir's secret sharing: any `threshold` shares give the secret, fewer say nothing about it.

Shamir: How to share a secret. Communications of the ACM 22(11), 1979. The secret is the constant term of a random
polynomial of degree threshold - 1 over the integers modulo a prime; share x is its value at x = 1, 2, ...
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
"""The smallest prime above 2**256, so that every secret of 32 bytes is a number below it."""
SECRET_BYTES = 32
SHARE_BYTES = 33


def split_secret(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Return shares x = 1 .. count of a secret of 32 bytes."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count:
        raise ValueError(f"a secret of {len(secret)} bytes cannot have {count} shares with a threshold of {threshold}")
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [evaluate(polynomial, x).to_bytes(SHARE_BYTES, "big") for x in range(1, count + 1)]


def evaluate(polynomial: Sequence[int], x: int) -> int:
    """Return the value at x of a polynomial with these coefficients, the constant term first."""
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def lagrange_weights(points: Sequence[int]) -> list[int]:
    """Return w with p(0) = sum_i w_i p(x_i) for every polynomial of degree below the number of points."""
    weights = []
    for x in points:
        numerator = denominator = 1
        for other in points:
            if other != x:
                numerator = numerator * other % PRIME
                denominator = denominator * (other - x) % PRIME
        weights.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return weights


def combine_shares(shares: Mapping[int, bytes], weights: Sequence[int] | None = None) -> bytes | None:
    """Return the secret of shares by their x, of which there must be `threshold`; None if they are not of one secret.

    `weights` are those of the shares' points in their order, where they are known already. Wrong shares give a wrong
    secret in most cases: compare it with something that its owner published.
    """
    weights = lagrange_weights(list(shares)) if weights is None else weights
    values = (int.from_bytes(share, "big") for share in shares.values())
    number = sum(weight * value for weight, value in zip(weights, values, strict=True)) % PRIME
    return number.to_bytes(SECRET_BYTES, "big") if number < 2 ** (8 * SECRET_BYTES) else None
