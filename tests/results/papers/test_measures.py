"""From a run's result to the number that is compared with the paper's."""

from __future__ import annotations

import math

import pytest

from fedwild.core.errors import UserError
from fedwild.results.papers import Measure

RESULT = {
    "metrics": {"auroc": 0.75, "known": 0.8, "novel": 0.5, "top_1": 0.2, "top_2": 0.4, "undefined": None},
    "by": {"mnist": {"auroc": 0.9}, "svhn": {"auroc": 0.5}, "usps": {"auroc": 0.7}},
}


def test_one_figure_as_a_percentage() -> None:
    assert Measure(("auroc",), factor=100).of(RESULT) == 75


def test_a_count_is_not_scaled() -> None:
    assert Measure(("number",)).of({"metrics": {"number": 19.0}, "by": {}}) == 19


def test_a_weighted_mean_of_two_figures() -> None:
    assert Measure(("known", "novel"), weights=(80, 20)).of(RESULT) == pytest.approx(0.74)
    assert Measure(("known", "novel")).of(RESULT) == pytest.approx(0.65)


def test_the_largest_figure_that_the_run_has() -> None:
    assert Measure(("top_1", "top_2", "top_3"), join="largest").of(RESULT) == 0.4


def test_the_error_of_a_number_is_relative_to_the_true_one() -> None:
    estimated = {"metrics": {"found": 12.0, "true": 16.0}, "by": {}}
    assert Measure(("found", "true"), join="relative-error", factor=100).of(estimated) == 25
    assert Measure(("true", "found"), join="relative-error").of(estimated) == pytest.approx(1 / 3)


def test_one_domain_and_mean_and_deviation_over_all() -> None:
    assert Measure(("auroc",), part="svhn").of(RESULT) == 0.5
    assert Measure(("auroc",), over="mean", factor=100).of(RESULT) == pytest.approx(70)
    assert Measure(("auroc",), over="deviation").of(RESULT) == pytest.approx(0.2)


def test_a_figure_after_a_round() -> None:
    history = {"history": {3: {"metrics": {"auroc": 0.6}, "by": {"svhn": {"auroc": 0.4}}}}}
    assert Measure(("auroc",), round=3, factor=100).of({**RESULT, **history}) == 60
    assert Measure(("auroc",), round=3, part="svhn").of({**RESULT, **history}) == 0.4
    with pytest.raises(UserError, match="the run was not evaluated after round 2"):
        Measure(("auroc",), round=2).of({**RESULT, **history})


def test_an_undefined_figure_is_nan() -> None:
    assert math.isnan(Measure(("undefined",), factor=100).of(RESULT))
    assert math.isnan(Measure(("undefined", "known"), join="largest").of(RESULT))
    assert math.isnan(Measure(("auroc",), over="mean").of({"metrics": {}, "by": {}}))
    assert math.isnan(Measure(("auroc",), over="deviation").of({"metrics": {}, "by": {"one": {"auroc": 0.5}}}))
    undefined = {"one": {"auroc": 0.5}, "two": {"auroc": None}}
    assert math.isnan(Measure(("auroc",), over="deviation").of({"metrics": {}, "by": undefined}))


def test_a_figure_or_domain_that_the_run_lacks_is_rejected() -> None:
    with pytest.raises(UserError, match=r"figure of the run 'auroq' is not known\. Did you mean 'auroc'"):
        Measure(("auroq",)).of(RESULT)
    with pytest.raises(UserError, match="figure of the run 'best' is not known"):
        Measure(("best",), join="largest").of(RESULT)
    with pytest.raises(UserError, match="figure of the run 'best' is not known"):
        Measure(("known", "best"), join="relative-error").of(RESULT)
    with pytest.raises(UserError, match="domain or client of the run 'mnist-m' is not known"):
        Measure(("auroc",), part="mnist-m").of(RESULT)
