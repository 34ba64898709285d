"""Answers on the test data, and the curves made from them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwild.lifecycle.run import Run
from fedwild.openset.metrics import auroc, confusion_matrix, oscr
from fedwild.results.report.answers import ModelAnswers, ask_model, threshold_behind, worst_and_best
from fedwild.results.report.facts import MAX_SECONDS, effort_for
from fedwild.results.report.history import History
from fedwild.results.report.sections.classes import confusion_counts
from fedwild.results.report.sections.openset import oscr_points, roc_points
from fedwild.results.report.sections.samples import chosen


def area(x: np.ndarray, y: np.ndarray) -> float:
    """Return the area under a curve by the trapezoid rule."""
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum())


SCORES = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_area_under_roc_curve_is_auroc_also_with_ties(known: list[float], unknown: list[float]) -> None:
    x, y = roc_points(np.array(known), np.array(unknown))
    assert area(x, y) == pytest.approx(auroc(known, unknown))
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)


@given(st.lists(st.tuples(st.integers(0, 6).map(float), st.booleans()), min_size=1, max_size=30), SCORES)
def test_area_under_oscr_curve_is_oscr(known: list[tuple[float, bool]], unknown: list[float]) -> None:
    scores, right = np.array([s for s, _ in known]), np.array([r for _, r in known])
    x, y = oscr_points(scores, right, np.array(unknown))
    assert area(x, y) == pytest.approx(oscr(scores, right, unknown))


def test_stored_threshold_is_used_only_if_it_explains_the_answers() -> None:
    scores, rejected = np.array([0.1, 0.2, 0.6, 0.9]), np.array([False, False, True, True])
    assert threshold_behind(scores, rejected, 0.5) == 0.5
    assert threshold_behind(scores, rejected, 0.7) == pytest.approx(0.4)
    assert threshold_behind(scores, np.zeros(4, dtype=bool), math.inf) == math.inf
    assert threshold_behind(scores, np.zeros(4, dtype=bool), 0.5) == math.inf
    everything = threshold_behind(scores, np.ones(4, dtype=bool), 0.5)
    assert (scores > everything).all()


def test_worst_and_best_client_are_shown() -> None:
    by: dict[str, dict[str, float | None]] = {"a": {"auroc": 0.7}, "b": {"auroc": None}, "c": {"auroc": 0.9}}
    assert worst_and_best(by, ["a", "b", "c"]) == [("a", "worst by AUROC: 70.0 %"), ("c", "best by AUROC: 90.0 %")]
    by = {name: {"auroc": None, "closed_accuracy": 0.5} for name in "ab"}
    assert len(worst_and_best(by, ["a", "b"])) == 2
    assert [name for name, _ in worst_and_best({}, ["a", "b"])] == ["a"]
    assert worst_and_best({}, []) == []


@pytest.fixture(scope="module")
def answers(finished_once: Path) -> ModelAnswers:
    return ask_model(Run(finished_once), None, "", workers=0)


def test_answers_agree_with_the_metrics_of_the_run(finished_once: Path, answers: ModelAnswers) -> None:
    run = Run(finished_once)
    known, unknown = answers.unknown[answers.is_known], answers.unknown[~answers.is_known]
    assert auroc(known, unknown) == pytest.approx(run.metrics["auroc"])
    assert answers.is_correct[answers.is_known].mean() == pytest.approx(run.metrics["closed_accuracy"])
    rows, counts = confusion_counts(answers)
    assert rows == [*answers.classes, "unknown"]
    assert (counts == confusion_matrix(answers.decision, answers.truth, len(answers.classes))).all()
    shares = np.exp(answers.logits) / np.exp(answers.logits).sum(axis=1, keepdims=True)
    assert answers.confidence == pytest.approx(shares.max(axis=1))
    assert not answers.is_threshold_fixed
    assert answers.threshold == run.server().thresholds["*"]


def test_thresholds_of_a_finished_run_equal_newly_calibrated_ones(finished_once: Path) -> None:
    run = Run(finished_once)
    kept, calibrated = run.outcome(workers=0, keep_thresholds=True), run.outcome(workers=0)
    assert kept.decision.tolist() == calibrated.decision.tolist()


def history_with(seconds: float) -> History:
    event = {"event": "round", "index": 0, "phase": "train", "evaluation_seconds": seconds, "metrics": {"auroc": 1.0}}
    return History([event])


def test_long_evaluation_is_repeated_on_a_part_of_the_samples(
    finished_once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(finished_once)
    total = len(run.experiment.split.test)
    monkeypatch.setattr("fedwild.results.report.facts.MIN_SAMPLES", 2)
    assert effort_for(run, history_with(0.01), None) == (0, total)
    workers, samples = effort_for(run, history_with(2 * MAX_SECONDS), None)
    assert samples == total // 2
    assert workers >= 1
    assert effort_for(run, history_with(2 * MAX_SECONDS), 0)[0] == 0


def test_a_random_part_of_many_test_samples_is_used(finished_once: Path) -> None:
    answers = ask_model(Run(finished_once), None, "", workers=0, max_samples=6)
    assert answers.is_part
    assert len(answers.rows) == len(answers.logits) == 6 < answers.total


def test_each_sample_is_in_one_sheet_and_the_worst_mistakes_come_first(answers: ModelAnswers) -> None:
    sheets = {title: (places, total) for title, _, places, total in chosen(answers)}
    assert sum(total for _, total in sheets.values()) == len(answers.rows)
    accepted, _ = sheets["Unknown but accepted"]
    mistakes = (answers.decision != -1) & ~answers.is_known
    assert len(accepted)
    assert answers.unknown[accepted[0]] == answers.unknown[mistakes].min()
    assert (np.diff(answers.unknown[accepted]) >= 0).all()
