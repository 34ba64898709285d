"""Nothing new, a new domain or new classes: both rules at their limits, and the sentences for the log."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedwild.methods.gains.discover import (
    Evidence,
    accept_declared,
    decide_by_federation,
    decide_by_limits,
    synonym_notes,
)
from fedwild.methods.gains.limits import kind_by_limits


def evidence(**given: Any) -> Evidence:
    return Evidence(**{"diff_f": 0.2, "diff_c": 0.3, "shift": 0.0, "limit": 0.1, **given})


# --- limits from the federation ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shift", "kind"),
    [(-0.2, "nothing"), (0.1, "nothing"), (math.nextafter(0.1, 1), "domain"), (7.0, "domain")],
)
def test_a_domain_is_new_beyond_the_limit(shift: float, kind: str) -> None:
    found = decide_by_federation(evidence(shift=shift))
    assert (found.kind, found.classes) == (kind, ())
    assert found.measured == {"shift": (shift, 0.1)}


def test_without_labels_of_its_classes_at_source_clients_a_domain_is_new() -> None:
    assert decide_by_federation(evidence(shift=math.nan)).kind == "domain"


@pytest.mark.parametrize("shift", [0.0, 5.0, math.nan])
def test_one_declared_class_with_samples_means_new_classes_in_any_domain(shift: float) -> None:
    found = decide_by_federation(evidence(shift=shift, rows={"a": 0.4, "b": -0.4, "c": 1e-9, "d": 0.0}))
    assert (found.kind, found.classes) == ("classes", ("a", "c"))


def test_declared_classes_whose_rows_only_moved_away_are_not_new() -> None:
    rows = {"a": -0.1, "b": 0.0}
    assert decide_by_federation(evidence(rows=rows)).kind == "nothing"
    assert decide_by_federation(evidence(rows=rows, shift=0.2)).kind == "domain"


def test_the_change_of_the_model_does_not_count() -> None:
    assert decide_by_federation(evidence(diff_f=1e9, diff_c=1e9)).kind == "nothing"


# --- fixed limits --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("diff_f", "diff_c", "kind"),
    [
        (0.154, 9.0, "nothing"),
        (0.155, 0.25, "domain"),
        (0.155, 0.26, "classes"),
        (0.0, 0.26, "nothing"),
    ],
)
def test_the_paper_s_rule_checks_diff_f_first_and_then_diff_c(diff_f: float, diff_c: float, kind: str) -> None:
    found = decide_by_limits(
        evidence(diff_f=diff_f, diff_c=diff_c, rows={"a": -1.0, "b": 1.0}, shift=99.0), 0.154, 0.25
    )
    assert found.kind == kind
    # It does not distinguish between rows: all declared classes are new, or none.
    assert found.classes == (("a", "b") if kind == "classes" else ())
    assert found.measured == {"Diff^F": (diff_f, 0.154), "Diff^C": (diff_c, 0.25)}


@pytest.mark.parametrize(
    ("diff_f", "diff_c", "above", "reached"),
    [
        (999.9, 9.0, "nothing", "nothing"),
        (1000.0, 0.2, "nothing", "domain"),
        (1000.0, 0.25, "nothing", "classes"),
        (1000.1, 0.25, "domain", "classes"),
        (1000.1, 0.26, "classes", "classes"),
        (math.nan, math.nan, "domain", "domain"),
    ],
)
def test_a_limit_that_is_reached_counts_only_if_limits_are_inclusive(
    diff_f: float, diff_c: float, above: str, reached: str
) -> None:
    assert kind_by_limits(diff_f, diff_c, 1000.0, 0.25) == above
    assert kind_by_limits(diff_f, diff_c, 1000.0, 0.25, inclusive=True) == reached


def test_the_released_program_accepts_all_declared_classes_and_adapts_in_any_case() -> None:
    far_below = {"diff_f": 0.0, "diff_c": 0.0}
    assert accept_declared(evidence(**far_below), 1000.0, 0.25).kind == "domain"
    found = accept_declared(evidence(**far_below, rows={"a": -1.0, "b": 1.0}), 1000.0, 0.25)
    assert (found.kind, found.classes) == ("classes", ("a", "b"))
    assert found.measured == {"Diff^F": (0.0, 1000.0), "Diff^C": (0.0, 0.25)}


def test_without_declared_classes_there_are_no_new_classes() -> None:
    assert decide_by_limits(evidence(diff_f=1.0, diff_c=1.0), 0.154, 0.25).kind == "domain"


# --- sentences -----------------------------------------------------------------------------------------------


def test_a_decision_is_a_sentence_with_figures_and_limits() -> None:
    proof = evidence(diff_f=0.12345, diff_c=2.0, shift=0.5)
    assert decide_by_federation(proof).describe("ann", proof) == "ann brings a new domain (shift 0.5, limit 0.1)"
    fixed = decide_by_limits(proof, 0.1, 0.25).describe("ann", proof)
    assert fixed == "ann brings a new domain (Diff^F 0.123, limit 0.1; Diff^C 2, limit 0.25)"


def test_the_sentence_names_new_classes_and_a_new_domain() -> None:
    proof = evidence(rows={"cat": 1.0, "dog": 0.5, "no": -1.0}, shift=0.5)
    text = decide_by_federation(proof).describe("ann", proof)
    assert text.startswith("ann brings new classes (cat, dog), in a new domain (shift 0.5, limit 0.1; ")
    assert "cosine of cat's row 1, limit 0" in text
    near = evidence(rows={"cat": 1.0}, shift=0.05)
    assert decide_by_federation(near).describe("ann", near).startswith("ann brings new classes (cat) (shift 0.05")


def test_figures_that_could_not_be_measured_are_omitted() -> None:
    proof = evidence(shift=math.nan)
    text = decide_by_federation(proof).describe("ann", proof)
    assert text == "ann brings a new domain (no source client has enough samples of these classes to compare with)"
    with_rows = evidence(shift=math.nan, rows={"cat": 0.25})
    with_cosine = decide_by_federation(with_rows).describe("ann", with_rows)
    assert with_cosine == "ann brings new classes (cat) (cosine of cat's row 0.25, limit 0)"


def test_the_figures_contain_the_decision_and_its_evidence() -> None:
    proof = evidence(rows={"cat": 1.0}, alike={"cat": ("dog", 0.5)})
    assert decide_by_federation(proof).figures(proof) == {
        "kind": "classes",
        "classes": ["cat"],
        "decided": {"shift": (0.0, 0.1), "cosine of cat's row": (1.0, 0.0)},
        "diff_f": 0.2,
        "diff_c": 0.3,
        "shift": 0.0,
        "limit": 0.1,
        "rows": {"cat": 1.0},
        "alike": {"cat": ("dog", 0.5)},
    }


def test_a_declared_class_that_looks_like_a_known_one_is_reported() -> None:
    proof = evidence(alike={"zwei": ("2", 0.049), "drei": ("3", 0.05), "vier": ("4", -0.2)})
    texts = synonym_notes(proof, 0.05)
    assert len(texts) == 2
    assert "class 'zwei' looks like the known class '2' (shift 0.049)" in texts[0]
    assert "--label zwei=2" in texts[0]
    assert "--label vier=4" in texts[1]
    assert synonym_notes(proof, 0.0) == texts[1:]
