"""Shamir's shares against an independent reconstruction with fractions of Python integers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest

from fedwild.aggregation.secure.shamir import PRIME, SHARE_BYTES, combine_shares, lagrange_weights, split_secret

SECRET = bytes(range(32))


def by_newton(shares: Mapping[int, bytes]) -> int:
    """Return p(0) by Newton's divided differences, which use no Lagrange weights."""
    points = list(shares)
    table = [int.from_bytes(share, "big") for share in shares.values()]
    for level in range(1, len(points)):
        for i in range(len(points) - 1, level - 1, -1):
            table[i] = (table[i] - table[i - 1]) * pow(points[i] - points[i - level], PRIME - 2, PRIME) % PRIME
    value = 0
    for point, coefficient in zip(reversed(points), reversed(table), strict=True):
        value = (value * -point + coefficient) % PRIME
    return value


def test_the_modulus_is_prime() -> None:
    rng = random.Random(0)
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(40):  # Miller-Rabin: a composite number passes with a probability below 4**-40
        x = pow(rng.randrange(2, PRIME - 1), odd, PRIME)
        assert x in (1, PRIME - 1) or any((x := x * x % PRIME) == PRIME - 1 for _ in range(twos - 1))


@pytest.mark.parametrize(("threshold", "count"), [(1, 1), (2, 3), (3, 5), (5, 5)])
def test_any_threshold_of_shares_gives_the_secret(threshold: int, count: int) -> None:
    shares = dict(enumerate(split_secret(SECRET, threshold, count), start=1))
    for points in itertools.permutations(shares, threshold):
        some = {x: shares[x] for x in points}
        assert combine_shares(some) == SECRET
        assert by_newton(some) == int.from_bytes(SECRET, "big")


def test_weights_may_be_shared_by_many_secrets() -> None:
    points = [4, 1, 3]
    weights = lagrange_weights(points)
    for secret in (SECRET, bytes(32), b"\xff" * 32):
        shares = split_secret(secret, 3, 5)
        assert combine_shares({x: shares[x - 1] for x in points}, weights) == secret


def test_fewer_shares_fit_every_secret() -> None:
    """For two of three shares and any secret, there is a third share that gives this secret."""
    shares = dict(enumerate(split_secret(SECRET, 3, 3), start=1))
    weights = lagrange_weights([1, 2, 3])
    for other in (0, 1, 2**255 + 7):
        known = sum(w * int.from_bytes(shares[x], "big") for x, w in zip((1, 2), weights, strict=False))
        third = (other - known) * pow(weights[2], -1, PRIME) % PRIME
        assert combine_shares({**shares, 3: third.to_bytes(SHARE_BYTES, "big")}) == other.to_bytes(32, "big")


def test_a_wrong_share_gives_another_secret() -> None:
    shares = dict(enumerate(split_secret(SECRET, 2, 3), start=1))
    assert combine_shares({1: shares[1], 2: bytes(SHARE_BYTES)}) != SECRET


def test_a_number_that_is_no_secret_is_none() -> None:
    assert combine_shares({1: (2**256).to_bytes(SHARE_BYTES, "big")}) is None


@pytest.mark.parametrize(("secret", "threshold", "count"), [(b"short", 1, 2), (SECRET, 3, 2), (SECRET, 0, 2)])
def test_impossible_shares_are_rejected(secret: bytes, threshold: int, count: int) -> None:
    with pytest.raises(ValueError, match="cannot have"):
        split_secret(secret, threshold, count)
