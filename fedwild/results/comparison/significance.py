"""Whether a difference between two rows is more than the luck of seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtr

MIN_SAMPLES = 3
"""Seeds that a row must have to be tested."""
LEVEL = 0.05


@dataclass(frozen=True)
class Verdict:
    """A row against the best one: two-sided."""

    kind: str
    """'paired t-test', "Welch's t-test" or 'too few seeds'."""
    p: float | None
    corrected: float | None = None
    """By Holm, over the rows of the column."""

    @property
    def is_tie(self) -> bool:
        """Not significantly worse than the best."""
        return self.corrected is not None and self.corrected >= LEVEL


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n - 1); None for a single value."""
    if len(values) < 2:
        return None
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def all_against(best: Mapping[int, float], others: Sequence[Mapping[int, float]]) -> list[Verdict]:
    """Each of the others against the best, with corrected p-values; values are by seed."""
    tests = [against(best, other) for other in others]
    corrected = iter(holm([test.p for test in tests if test.p is not None]))
    return [test if test.p is None else Verdict(test.kind, test.p, next(corrected)) for test in tests]


def against(one: Mapping[int, float], other: Mapping[int, float]) -> Verdict:
    """Paired if both have the same seeds."""
    if min(len(one), len(other)) < MIN_SAMPLES:
        return Verdict("too few seeds", None)
    if one.keys() == other.keys():
        return Verdict("paired t-test", paired_t([one[seed] - other[seed] for seed in one]))
    return Verdict("Welch's t-test", welch_t(list(one.values()), list(other.values())))


def paired_t(differences: Sequence[float]) -> float:
    """p of a mean difference of 0: t = mean / (s / sqrt n), n - 1 degrees of freedom."""
    n = len(differences)
    return _p(mean(differences), (deviation(differences) or 0.0) ** 2 / n, n - 1)


def welch_t(one: Sequence[float], other: Sequence[float]) -> float:
    """p of equal means if variances may differ; degrees of freedom after Welch and Satterthwaite."""
    parts = [((deviation(values) or 0.0) ** 2 / len(values), len(values) - 1) for values in (one, other)]
    variance = sum(part for part, _ in parts)
    weight = sum(part**2 / freedom for part, freedom in parts)
    return _p(mean(one) - mean(other), variance, variance**2 / weight if weight else 1.0)


def _p(difference: float, variance: float, freedom: float) -> float:
    """Two-sided p. If nothing varies, any difference is certain, and none is none."""
    if variance == 0:
        return 1.0 if difference == 0 else 0.0
    return float(2 * stdtr(freedom, -abs(difference) / math.sqrt(variance)))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the i-th smallest of m times m - i + 1, never falling and at most 1."""
    corrected, highest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = highest
    return corrected
