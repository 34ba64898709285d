"""Nothing new, a new domain or new classes: both rules at their limits, and how a decision is told."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedwild.methods.gains.verdict import Evidence, by_federation, by_fixed, synonyms


def evidence(**given: Any) -> Evidence:
    return Evidence(**{"diff_f": 0.2, "diff_c": 0.3, "shift": 0.0, "limit": 0.1, **given})


# --- limits from the federation ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shift", "kind"),
    [(-0.2, "nothing"), (0.1, "nothing"), (math.nextafter(0.1, 1), "domain"), (7.0, "domain")],
)
def test_a_domain_is_new_beyond_the_limit(shift: float, kind: str) -> None:
    found = by_federation(evidence(shift=shift))
    assert (found.kind, found.classes) == (kind, ())
    assert found.measured == {"shift": (shift, 0.1)}


def test_where_nobody_has_labels_of_its_classes_there_is_much_to_learn() -> None:
    assert by_federation(evidence(shift=math.nan)).kind == "domain"


@pytest.mark.parametrize("shift", [0.0, 5.0, math.nan])
def test_one_declared_class_that_was_drawn_makes_new_classes_whatever_the_domain(shift: float) -> None:
    found = by_federation(evidence(shift=shift, rows={"a": 0.4, "b": -0.4, "c": 1e-9, "d": 0.0}))
    assert (found.kind, found.classes) == ("classes", ("a", "c"))


def test_declared_classes_that_only_moved_away_are_none() -> None:
    rows = {"a": -0.1, "b": 0.0}
    assert by_federation(evidence(rows=rows)).kind == "nothing"
    assert by_federation(evidence(rows=rows, shift=0.2)).kind == "domain"


def test_how_much_the_model_changed_does_not_matter_to_it() -> None:
    assert by_federation(evidence(diff_f=1e9, diff_c=1e9)).kind == "nothing"


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
def test_the_paper_s_rule_asks_diff_f_first_and_then_diff_c(diff_f: float, diff_c: float, kind: str) -> None:
    found = by_fixed(evidence(diff_f=diff_f, diff_c=diff_c, rows={"a": -1.0, "b": 1.0}, shift=99.0), 0.154, 0.25)
    assert found.kind == kind
    # It does not look at rows one by one: all that is declared is new, or nothing.
    assert found.classes == (("a", "b") if kind == "classes" else ())
    assert found.measured == {"Diff^F": (diff_f, 0.154), "Diff^C": (diff_c, 0.25)}


def test_nobody_brings_new_classes_without_declaring_any() -> None:
    assert by_fixed(evidence(diff_f=1.0, diff_c=1.0), 0.154, 0.25).kind == "domain"


# --- how it is told ------------------------------------------------------------------------------------------


def test_a_decision_is_one_sentence_with_its_figures_and_limits() -> None:
    proof = evidence(diff_f=0.12345, diff_c=2.0, shift=0.5)
    assert by_federation(proof).told("ann", proof) == "ann brings a new domain (shift 0.5, limit 0.1)"
    fixed = by_fixed(proof, 0.1, 0.25).told("ann", proof)
    assert fixed == "ann brings a new domain (Diff^F 0.123, limit 0.1; Diff^C 2, limit 0.25)"


def test_new_classes_are_named_and_so_is_a_new_domain_beside_them() -> None:
    proof = evidence(rows={"cat": 1.0, "dog": 0.5, "no": -1.0}, shift=0.5)
    text = by_federation(proof).told("ann", proof)
    assert text.startswith("ann brings new classes (cat, dog), in a new domain (shift 0.5, limit 0.1; ")
    assert "cosine of cat's row 1, limit 0" in text
    near = evidence(rows={"cat": 1.0}, shift=0.05)
    assert by_federation(near).told("ann", near).startswith("ann brings new classes (cat) (shift 0.05")


def test_what_could_not_be_measured_is_not_told() -> None:
    proof = evidence(shift=math.nan)
    text = by_federation(proof).told("ann", proof)
    assert text == "ann brings a new domain (nobody has enough samples of these classes to compare with)"
    with_rows = evidence(shift=math.nan, rows={"cat": 0.25})
    told = by_federation(with_rows).told("ann", with_rows)
    assert told == "ann brings new classes (cat) (cosine of cat's row 0.25, limit 0)"


def test_the_figures_hold_all_that_the_decision_rests_on() -> None:
    proof = evidence(rows={"cat": 1.0}, alike={"cat": ("dog", 0.5)})
    assert by_federation(proof).figures(proof) == {
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


def test_a_declared_class_that_looks_like_a_known_one_is_asked_about() -> None:
    proof = evidence(alike={"zwei": ("2", 0.049), "drei": ("3", 0.05), "vier": ("4", -0.2)})
    texts = synonyms(proof, 0.05)
    assert len(texts) == 2
    assert "'zwei' looks like '2' (shift 0.049)" in texts[0]
    assert "--label zwei=2" in texts[0]
    assert "--label vier=4" in texts[1]
    assert synonyms(proof, 0.0) == texts[1:]
