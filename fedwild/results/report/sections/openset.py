"""Known and unknown samples: scores, curves and confidence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedwild.core.errors import UserError
from fedwild.core.text import percent
from fedwild.openset.metrics import UNKNOWN, auroc, oscr
from fedwild.results.report.answers import ModelAnswers
from fedwild.results.report.calibration import calibration_of
from fedwild.results.report.charts.bars import histogram, reliability_chart
from fedwild.results.report.charts.lines import Series, curve_chart
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid
from fedwild.results.report.markup import Html

Real = NDArray[np.float64]


def draw(facts: Facts, answers: ModelAnswers) -> Html:
    """Return the histogram, ROC, OSCR and reliability."""
    return grid(
        [
            figure(
                "Unknown scores",
                lambda: scores(answers),
                f"Samples right of the threshold are answered with unknown. {about_threshold(facts, answers)} "
                "Heights follow the square root of the share.",
            ),
            figure("ROC", lambda: roc(answers), "For all thresholds; the area under the curve is AUROC."),
            figure(
                "OSCR",
                lambda: oscr_curve(answers),
                "Correctly classified known samples over accepted unknown samples; the area under the curve is OSCR.",
            ),
            figure("Reliability", lambda: reliability(answers), "Best known class for known test samples."),
        ]
    )


def about_threshold(facts: Facts, answers: ModelAnswers) -> str:
    """Return a sentence about the origin of the threshold."""
    if answers.is_threshold_fixed:
        return "The method fixes the threshold."
    accept = facts.table.get("evaluation", {}).get("accept", 0.95)
    return f"The threshold accepts {100 * accept:g} % of the clients' known validation samples; test data is not used."


def scores(answers: ModelAnswers) -> Html:
    groups = [("known", answers.unknown[answers.is_known]), ("unknown", answers.unknown[~answers.is_known])]
    return histogram(groups, "unknown score", answers.threshold)


def check(answers: ModelAnswers) -> None:
    """Raise `UserError` if there is no curve to draw."""
    if answers.is_known.all():
        raise UserError("All test samples belong to classes that the model knows, so there is no curve to draw.")
    if not answers.is_known.any():
        raise UserError("no test sample belongs to a class that the model knows.")
    if np.isnan(answers.unknown).any():
        raise UserError("some unknown scores are NaN: the model's training has diverged.")


def roc(answers: ModelAnswers) -> Html:
    """Return the share of rejected unknown samples over the share of rejected known samples."""
    check(answers)
    known, unknown = answers.unknown[answers.is_known], answers.unknown[~answers.is_known]
    x, y = roc_points(known, unknown)
    rejected = answers.decision == UNKNOWN
    point = share(rejected[answers.is_known]), share(rejected[~answers.is_known])
    curve = Series(f"AUROC {percent(auroc(known, unknown))}", x.tolist(), y.tolist())
    return curve_chart(curve, "unknown samples rejected", "known samples rejected", True, point)


def roc_points(known: Real, unknown: Real) -> tuple[Real, Real]:
    """Return the shares of known and of unknown scores above each threshold, from none to all."""
    thresholds = np.unique(np.concatenate([known, unknown]))[::-1]
    x = np.concatenate([[0.0], at_least(known, thresholds)])
    y = np.concatenate([[0.0], at_least(unknown, thresholds)])
    return x, y


def at_least(scores: Real, thresholds: Real) -> Real:
    """Return the share of scores that are not below each threshold."""
    shares: Real = 1 - np.searchsorted(np.sort(scores), thresholds, side="left") / len(scores)
    return shares


def oscr_curve(answers: ModelAnswers) -> Html:
    """Return the share of known samples accepted with the correct class over the share of accepted unknown samples."""
    check(answers)
    known, unknown = answers.unknown[answers.is_known], answers.unknown[~answers.is_known]
    correct = answers.is_correct[answers.is_known]
    x, y = oscr_points(known, correct, unknown)
    accepted = answers.decision != UNKNOWN
    point = share(accepted[~answers.is_known]), share(accepted[answers.is_known] & correct)
    curve = Series(f"OSCR {percent(oscr(known, correct, unknown))}", x.tolist(), y.tolist())
    return curve_chart(curve, "known samples correct", "unknown samples accepted", False, point)


def oscr_points(known: Real, correct: NDArray[np.bool_], unknown: Real) -> tuple[Real, Real]:
    """Return FPR and CCR at each threshold, from none accepted to all."""
    thresholds = np.unique(np.concatenate([known, unknown]))
    fpr = np.searchsorted(np.sort(unknown), thresholds, side="right") / len(unknown)
    ccr = np.searchsorted(np.sort(known[correct]), thresholds, side="right") / len(known)
    return np.concatenate([[0.0], fpr]), np.concatenate([[0.0], ccr])


def reliability(answers: ModelAnswers) -> Html:
    """Return accuracy by confidence, with the expected calibration error."""
    shown = answers.is_known & np.isfinite(answers.confidence)
    if not shown.any():
        raise UserError("no known test sample has an answer with a finite confidence.")
    return reliability_chart(calibration_of(answers.confidence[shown], answers.is_correct[shown]))


def share(which: NDArray[np.bool_]) -> float:
    return float(which.mean()) if len(which) else 0.0
