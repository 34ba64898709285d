"""Fixed-point numbers: sums never overflow, and their error is the stated one."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwild.aggregation.secure.fixed_point import FixedPoint

LIMITS = st.floats(1e-6, 1e12, allow_nan=False, allow_infinity=False)


@given(limit=LIMITS, clients=st.integers(1, 10_000))
def test_the_sum_of_the_largest_values_does_not_overflow(limit: float, clients: int) -> None:
    code = FixedPoint(limit, clients)
    largest = [abs(int(q)) for q in code.encode(np.array([limit, -limit])).view(np.int64)]
    assert clients * max(largest) < 2**63
    # One more digit would not be safe, unless the point is at its last place already.
    assert code.fraction_bits == 62 or 2 * Fraction(limit) * clients * 2**code.fraction_bits > 2**62 * (1 - 2**-50)


@given(limit=LIMITS, clients=st.integers(1, 50), seed=st.integers(0, 1000))
def test_the_sum_is_exact_up_to_the_stated_error(limit: float, clients: int, seed: int) -> None:
    code = FixedPoint(limit, clients)
    rng = np.random.default_rng(seed)
    vectors = rng.uniform(-limit, limit, (clients, 5))
    total = np.array([code.encode(vector) for vector in vectors]).sum(axis=0)
    quantised = [sum(int(code.encode(v).view(np.int64)[i]) for v in vectors) for i in range(5)]
    assert total.view(np.int64).tolist() == quantised
    for value, column in zip(quantised, vectors.T, strict=True):
        exact = sum(map(Fraction, column))
        assert abs(Fraction(value, 2**code.fraction_bits) - exact) <= Fraction(code.max_error)


@given(numbers=st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=20))
def test_whole_numbers_are_exact(numbers: list[int]) -> None:
    code = FixedPoint(2.0**34, len(numbers))
    total = code.encode(np.array(numbers, dtype=np.float64)).sum(keepdims=True)
    assert code.decode(total).tolist() == [sum(numbers)]


@pytest.mark.parametrize("value", [4.0001, -5.0, np.nan, np.inf])
def test_values_above_the_limit_are_rejected(value: float) -> None:
    with pytest.raises(ValueError, match="not finite, or larger than 4"):
        FixedPoint(4.0, 3).encode(np.array([0.0, value]))


@pytest.mark.parametrize(("limit", "clients"), [(2.0**60, 8), (0.0, 2), (np.inf, 2), (1.0, 0)])
def test_impossible_encodings_are_rejected(limit: float, clients: int) -> None:
    with pytest.raises(ValueError):
        FixedPoint(limit, clients)
