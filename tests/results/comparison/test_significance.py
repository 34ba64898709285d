"""Means, deviations, t-tests and Holm's correction against scipy and against figures worked out by hand."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedwild.results.comparison.significance import deviation, holm, mean, paired_t, t_test, t_tests, welch_t

A = [0.91, 0.93, 0.90, 0.94, 0.92]
B = [0.89, 0.92, 0.885, 0.93, 0.90]
C = [0.70, 0.95, 0.80]


def by_seed(values: list[float], first: int = 0) -> dict[int, float]:
    return dict(enumerate(values, start=first))


def test_mean_and_sample_standard_deviation_match_the_textbook() -> None:
    assert mean([1, 2, 6]) == 3
    # (4 + 1 + 9) / 2 = 7
    assert deviation([1, 2, 6]) == pytest.approx(math.sqrt(7))
    assert deviation([0.3]) is None
    assert deviation(A) == pytest.approx(statistics.stdev(A))


def test_the_paired_test_matches_scipy() -> None:
    expected = stats.ttest_rel(A, B).pvalue
    assert paired_t([a - b for a, b in zip(A, B, strict=True)]) == pytest.approx(expected, rel=1e-9)


def test_a_paired_test_of_three_seeds_worked_out_by_hand() -> None:
    # Differences 1, 2, 3: mean 2, s = 1, t = 2 sqrt 3. With two degrees of freedom p = 1 - t / sqrt(t^2 + 2).
    t = 2 * math.sqrt(3)
    assert paired_t([1, 2, 3]) == pytest.approx(1 - t / math.sqrt(t**2 + 2))


def test_welchs_test_matches_scipy_for_samples_of_different_size_and_spread() -> None:
    assert welch_t(A, C) == pytest.approx(stats.ttest_ind(A, C, equal_var=False).pvalue, rel=1e-9)


def test_welchs_test_worked_out_by_hand() -> None:
    # Both have variance 1 and n = 3, so t = 2 / sqrt(2/3) and there are 4 degrees of freedom, where
    # p = 1 - (3/2) x (1 - x^2 / 3) with x = t / sqrt(t^2 + 4).
    t = 2 / math.sqrt(2 / 3)
    x = t / math.sqrt(t**2 + 4)
    assert welch_t([3, 4, 5], [1, 2, 3]) == pytest.approx(1 - 1.5 * x * (1 - x**2 / 3))


@given(st.lists(st.floats(0, 1), min_size=3, max_size=8), st.lists(st.floats(0, 1), min_size=3, max_size=8))
def test_welchs_p_is_a_probability_and_symmetric(one: list[float], other: list[float]) -> None:
    p = welch_t(one, other)
    assert 0 <= p <= 1
    assert p == pytest.approx(welch_t(other, one))


def test_equal_seeds_are_paired_and_too_few_are_not_tested() -> None:
    assert t_test(by_seed(A), by_seed(B)).kind == "paired t-test"
    assert t_test(by_seed(A), by_seed(B, first=1)).kind == "Welch's t-test"
    assert t_test(by_seed(A), by_seed(C)).kind == "Welch's t-test"
    for few in ({}, by_seed([0.5]), by_seed([0.5, 0.6])):
        for test in (t_test(by_seed(A), few), t_test(few, by_seed(A))):
            assert (test.kind, test.p, test.is_tie) == ("too few seeds", None, False)


def test_without_variance_p_is_one_for_equal_means_and_zero_for_different_ones() -> None:
    same, other = by_seed([0.5] * 3), by_seed([0.75] * 3)
    assert t_test(same, dict(same)).p == 1
    assert t_test(same, other).p == 0
    assert t_test(same, by_seed([0.5] * 3, first=7)).p == 1
    assert t_test(same, by_seed([0.75] * 3, first=7)).p == 0
    # A constant difference between varying values.
    assert t_test(by_seed([0.25, 0.5, 0.75]), by_seed([0.5, 0.75, 1.0])).p == 0


def test_holm_matches_an_example_worked_out_by_hand() -> None:
    # Sorted: 0.005 x 4 = 0.02, 0.01 x 3 = 0.03, 0.03 x 2 = 0.06, 0.04 x 1 -> at least the 0.06 before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_correction_counts_only_tested_rows() -> None:
    tests = t_tests(by_seed(A), [by_seed(B), by_seed([0.5]), by_seed(C)])
    b, few, c = tests
    assert (few.p, few.corrected) == (None, None)
    assert b.p == pytest.approx(stats.ttest_rel(A, B).pvalue)
    assert b.p is not None
    assert b.corrected == pytest.approx(2 * b.p)
    assert c.corrected == pytest.approx(max(b.corrected, stats.ttest_ind(A, C, equal_var=False).pvalue))
    assert (b.is_tie, c.is_tie) == (False, True)
