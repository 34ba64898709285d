"""Answers on the test data, and what curves are made of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwild.api import Run
from fedwild.openset.metrics import auroc, confusion_matrix, oscr
from fedwild.results.report.facts import MAX_SECONDS, Effort, effort_of
from fedwild.results.report.history import History
from fedwild.results.report.sections.classes import confusion_counts
from fedwild.results.report.sections.openset import oscr_points, roc_points
from fedwild.results.report.sections.samples import chosen
from fedwild.results.report.seen import extremes, seen_of, threshold_behind


def area(x: np.ndarray, y: np.ndarray) -> float:
    """By the trapezoid rule."""
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum())


SCORES = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_the_area_below_the_roc_curve_is_auroc_with_ties_too(known: list[float], unknown: list[float]) -> None:
    x, y = roc_points(np.array(known), np.array(unknown))
    assert area(x, y) == pytest.approx(auroc(known, unknown))
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)


@given(st.lists(st.tuples(st.integers(0, 6).map(float), st.booleans()), min_size=1, max_size=30), SCORES)
def test_the_area_below_the_oscr_curve_is_oscr(known: list[tuple[float, bool]], unknown: list[float]) -> None:
    scores, right = np.array([s for s, _ in known]), np.array([r for _, r in known])
    x, y = oscr_points(scores, right, np.array(unknown))
    assert area(x, y) == pytest.approx(oscr(scores, right, unknown))


def test_a_stored_threshold_is_kept_only_if_it_explains_the_answers() -> None:
    scores, rejected = np.array([0.1, 0.2, 0.6, 0.9]), np.array([False, False, True, True])
    assert threshold_behind(scores, rejected, 0.5) == 0.5
    assert threshold_behind(scores, rejected, 0.7) == pytest.approx(0.4)
    assert threshold_behind(scores, np.zeros(4, dtype=bool), math.inf) == math.inf
    assert threshold_behind(scores, np.zeros(4, dtype=bool), 0.5) == math.inf
    everything = threshold_behind(scores, np.ones(4, dtype=bool), 0.5)
    assert (scores > everything).all()


def test_the_worst_and_the_best_client_are_shown() -> None:
    by: dict[str, dict[str, float | None]] = {"a": {"auroc": 0.7}, "b": {"auroc": None}, "c": {"auroc": 0.9}}
    assert [name for name, _ in extremes(by, ["a", "b", "c"])] == ["a", "c"]
    by = {name: {"auroc": None, "closed_accuracy": 0.5} for name in "ab"}
    assert len(extremes(by, ["a", "b"])) == 2
    assert [name for name, _ in extremes({}, ["a", "b"])] == ["a"]
    assert extremes({}, []) == []


def test_answers_agree_with_the_runs_own_figures(finished_once: Path) -> None:
    run = Run(finished_once)
    seen = seen_of(run, None, "", workers=0)
    known, unknown = seen.unknown[seen.known], seen.unknown[~seen.known]
    assert auroc(known, unknown) == pytest.approx(run.metrics["auroc"])
    assert seen.right[seen.known].mean() == pytest.approx(run.metrics["closed_accuracy"])
    rows, counts = confusion_counts(seen)
    assert rows == [*seen.classes, "unknown"]
    assert (counts == confusion_matrix(seen.decision, seen.truth, len(seen.classes))).all()
    assert seen.confidence == pytest.approx(
        (np.exp(seen.logits) / np.exp(seen.logits).sum(axis=1, keepdims=True)).max(axis=1)
    )


def test_a_finished_runs_thresholds_are_those_that_would_be_set_anew(finished_once: Path) -> None:
    run = Run(finished_once)
    kept, anew = run.outcome(workers=0, keep_thresholds=True), run.outcome(workers=0)
    assert kept.decision.tolist() == anew.decision.tolist()


def rounds_that_took(seconds: float) -> History:
    event = {"event": "round", "index": 0, "phase": "train", "evaluation_seconds": seconds, "metrics": {"auroc": 1.0}}
    return History([event])


def test_a_long_evaluation_is_done_again_for_a_part_of_the_samples(
    finished_once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(finished_once)
    total = len(run.experiment.split.test)
    monkeypatch.setattr("fedwild.results.report.facts.MIN_SAMPLES", 2)
    assert effort_of(run, rounds_that_took(0.01), None) == Effort(total, 0)
    long = effort_of(run, rounds_that_took(2 * MAX_SECONDS), None)
    assert long.samples == total // 2
    assert long.workers >= 1
    assert effort_of(run, rounds_that_took(2 * MAX_SECONDS), 0).workers == 0


def test_of_much_test_data_a_part_is_drawn(finished_once: Path) -> None:
    seen = seen_of(Run(finished_once), None, "", workers=0, most=6)
    assert seen.is_part
    assert len(seen.rows) == len(seen.logits) == 6 < seen.total


def test_every_sample_is_in_one_sheet_and_the_worst_mistakes_come_first(finished_once: Path) -> None:
    seen = seen_of(Run(finished_once), None, "", workers=0)
    sheets = {title: (places, total) for title, _, places, total in chosen(seen)}
    assert sum(total for _, total in sheets.values()) == len(seen.rows)
    accepted, _ = sheets["Unknown but accepted"]
    wrongly = (seen.decision != -1) & ~seen.known
    assert len(accepted)
    assert seen.unknown[accepted[0]] == seen.unknown[wrongly].min()
    assert (np.diff(seen.unknown[accepted]) >= 0).all()
