"""Whether the difference between two rows is larger than the variation between seeds explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtr

MIN_SAMPLES = 3
"""The number of seeds that a row needs for a test."""
LEVEL = 0.05


@dataclass(frozen=True)
class TTest:
    """A two-sided test of a row against the best row."""

    kind: str
    """'paired t-test', "Welch's t-test" or 'too few seeds'."""
    p: float | None
    corrected: float | None = None
    """The p-value after Holm's correction over the rows of the column."""

    @property
    def is_tie(self) -> bool:
        """Whether the row is not significantly worse than the best."""
        return self.corrected is not None and self.corrected >= LEVEL


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1); None for a single value."""
    if len(values) < 2:
        return None
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def t_tests(best: Mapping[int, float], others: Sequence[Mapping[int, float]]) -> list[TTest]:
    """Test each of the others against the best, with corrected p-values; values are by seed."""
    tests = [t_test(best, other) for other in others]
    corrected = iter(holm([test.p for test in tests if test.p is not None]))
    return [test if test.p is None else TTest(test.kind, test.p, next(corrected)) for test in tests]


def t_test(one: Mapping[int, float], other: Mapping[int, float]) -> TTest:
    """Test two rows; the test is paired if both have the same seeds."""
    if min(len(one), len(other)) < MIN_SAMPLES:
        return TTest("too few seeds", None)
    if one.keys() == other.keys():
        return TTest("paired t-test", paired_t([one[seed] - other[seed] for seed in one]))
    return TTest("Welch's t-test", welch_t(list(one.values()), list(other.values())))


def paired_t(differences: Sequence[float]) -> float:
    """Return p for a mean difference of 0: t = mean / (s / sqrt n), n - 1 degrees of freedom."""
    n = len(differences)
    return _p(mean(differences), (deviation(differences) or 0.0) ** 2 / n, n - 1)


def welch_t(one: Sequence[float], other: Sequence[float]) -> float:
    """Return p for equal means with unequal variances; degrees of freedom by Welch and Satterthwaite."""
    parts = [((deviation(values) or 0.0) ** 2 / len(values), len(values) - 1) for values in (one, other)]
    variance = sum(part for part, _ in parts)
    weight = sum(part**2 / freedom for part, freedom in parts)
    return _p(mean(one) - mean(other), variance, variance**2 / weight if weight else 1.0)


def _p(difference: float, variance: float, freedom: float) -> float:
    """Return the two-sided p-value. Without variance, p is 1 for equal means and 0 for different ones."""
    if variance == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * stdtr(freedom, -abs(difference) / math.sqrt(variance)))


def holm(ps: Sequence[float]) -> list[float]:
    """Return Holm's step-down correction: the i-th smallest of m times m - i + 1, non-decreasing and at most 1."""
    corrected, highest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = highest
    return corrected
