"""Fixed-point numbers modulo 2**64, in which masks cancel exactly.

A number x is sent as q(x) = round(x * 2**f) modulo 2**64. Let K clients send |x| <= L each. f is the largest whole
number with K * L * 2**f <= 2**62. Then

    |sum_k q(x_k)|  <=  sum_k (|x_k| * 2**f + 1/2)  <=  2**62 + K / 2  <  2**63    for K < 2**63,

so that the sum modulo 2**64, read as a signed number, is the exact sum of the q(x_k): it cannot overflow. Each q(x_k)
differs from x_k * 2**f by at most 1/2, so that

    |sum_k q(x_k) / 2**f - sum_k x_k|  <=  K / 2 * 2**-f    (`FixedPoint.max_error`).

The product with a power of two is exact in float64, and so is its rounding. Whole numbers are exact for f >= 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SUM_BITS = 62
"""The sum of all clients stays below 2**63; one bit is room for rounding."""
MAX_FRACTION_BITS = 62


@dataclass(frozen=True)
class FixedPoint:
    """The encoding that all clients of a round use."""

    limit: float
    """L, the largest absolute value that a client sends."""
    clients: int
    """K, the number of clients that may send a vector."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.limit) and self.limit > 0 and self.clients >= 1):
            raise ValueError(f"limit = {self.limit} and clients = {self.clients} must be positive and finite")
        if self.fraction_bits < 0:
            raise ValueError(f"{self.clients} clients with values up to {self.limit:g} do not fit into 64 bits")

    @property
    def fraction_bits(self) -> int:
        """f, the number of binary digits after the point."""
        # frexp is exact: total <= 2**exponent, so that total * 2**(62 - exponent) <= 2**62.
        mantissa, exponent = math.frexp(self.clients * self.limit)
        exponent -= mantissa == 0.5
        return min(SUM_BITS - exponent, MAX_FRACTION_BITS)

    @property
    def max_error(self) -> float:
        """The largest error of a sum by rounding at the clients."""
        return math.ldexp(self.clients / 2, -self.fraction_bits)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return float64 values (d,) with |x| <= limit as uint64 (d,)."""
        if values.size and not np.abs(values).max() <= self.limit:
            raise ValueError(f"a value is not finite, or larger than {self.limit:g}")
        return np.rint(np.ldexp(values, self.fraction_bits)).astype(np.int64).view(np.uint64)

    def decode(self, total: np.ndarray) -> np.ndarray:
        """Return the sum of encoded vectors, uint64 (d,), as float64 (d,)."""
        return np.ldexp(total.view(np.int64).astype(np.float64), -self.fraction_bits)
