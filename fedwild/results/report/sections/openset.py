"""Known against unknown: scores, curves and confidence."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedwild.core.errors import UserError
from fedwild.openset.metrics import UNKNOWN, auroc, oscr
from fedwild.results.report.calibration import calibration_of
from fedwild.results.report.charts.histogram import histogram
from fedwild.results.report.charts.lines import Series, curve_chart
from fedwild.results.report.charts.reliability import reliability_chart
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid
from fedwild.results.report.markup import Html
from fedwild.results.report.sections.views import for_each_view
from fedwild.results.report.seen import Seen

Real = NDArray[np.float64]

NO_UNKNOWN = "All test samples are of classes that the model knows, so there is nothing to tell apart."


def draw(facts: Facts) -> Html:
    """Histogram, ROC, OSCR and reliability of each model that is shown."""
    return for_each_view(facts, panels)


def panels(facts: Facts, seen: Seen) -> Html:
    return grid(
        [
            figure(
                "Unknown scores",
                lambda: scores(seen),
                f"Right of the threshold the answer is unknown. {threshold_words(facts)} Heights go by square roots.",
            ),
            figure("ROC", lambda: roc(seen), "Every threshold at once; the area is AUROC."),
            figure("OSCR", lambda: oscr_curve(seen), "Known samples that are accepted and right; the area is OSCR."),
            figure("Reliability", lambda: reliability(seen), "Known test samples and the best known class."),
        ]
    )


def threshold_words(facts: Facts) -> str:
    """Where the threshold comes from."""
    if facts.run.settings.make_method().threshold() is not None:
        return "The method fixes it."
    accept = facts.table.get("evaluation", {}).get("accept", 0.95)
    return f"It was set to accept {100 * accept:g} % of clients' own validation samples, never on test data."


def scores(seen: Seen) -> Html:
    groups = [("known", seen.unknown[seen.known]), ("unknown", seen.unknown[~seen.known])]
    return histogram(groups, "unknown score", seen.threshold)


def check(seen: Seen) -> None:
    """Refuse what no curve can be made of."""
    if seen.known.all():
        raise UserError(NO_UNKNOWN)
    if not seen.known.any():
        raise UserError("no test sample is of a class that the model knows.")
    if np.isnan(seen.unknown).any():
        raise UserError("some unknown scores are NaN: the model's training has diverged.")


def roc(seen: Seen) -> Html:
    """The share of unknown samples that are rejected over that of known ones."""
    check(seen)
    known, unknown = seen.unknown[seen.known], seen.unknown[~seen.known]
    x, y = roc_points(known, unknown)
    rejected = seen.decision == UNKNOWN
    point = share(rejected[seen.known]), share(rejected[~seen.known]), "at the threshold"
    curve = Series(f"AUROC {100 * auroc(known, unknown):.1f} %", x.tolist(), y.tolist())
    return curve_chart([curve], "known samples rejected", "unknown samples rejected", True, point)


def roc_points(known: Real, unknown: Real) -> tuple[Real, Real]:
    """Shares of known and of unknown samples with a score above each threshold, from none to all."""
    thresholds = np.unique(np.concatenate([known, unknown]))[::-1]
    x = np.concatenate([[0.0], at_least(known, thresholds)])
    y = np.concatenate([[0.0], at_least(unknown, thresholds)])
    return x, y


def at_least(scores: Real, thresholds: Real) -> Real:
    """The share of scores that are at least as large as each threshold."""
    shares: Real = 1 - np.searchsorted(np.sort(scores), thresholds, side="left") / len(scores)
    return shares


def oscr_curve(seen: Seen) -> Html:
    """CCR over FPR."""
    check(seen)
    known, unknown, correct = seen.unknown[seen.known], seen.unknown[~seen.known], seen.right[seen.known]
    x, y = oscr_points(known, correct, unknown)
    accepted = seen.decision != UNKNOWN
    point = share(accepted[~seen.known]), share(accepted[seen.known] & correct), "at the threshold"
    curve = Series(f"OSCR {100 * oscr(known, correct, unknown):.1f} %", x.tolist(), y.tolist())
    return curve_chart([curve], "unknown samples accepted", "known: accepted and right", False, point)


def oscr_points(known: Real, correct: NDArray[np.bool_], unknown: Real) -> tuple[Real, Real]:
    """FPR and CCR at each threshold, from none accepted to all."""
    thresholds = np.unique(np.concatenate([known, unknown]))
    fpr = np.searchsorted(np.sort(unknown), thresholds, side="right") / len(unknown)
    ccr = np.searchsorted(np.sort(known[correct]), thresholds, side="right") / len(known)
    return np.concatenate([[0.0], fpr]), np.concatenate([[0.0], ccr])


def reliability(seen: Seen) -> Html:
    """How often answers of a confidence are right, with the expected calibration error."""
    sure = seen.known & np.isfinite(seen.confidence)
    if not sure.any():
        raise UserError("no known test sample has an answer with a finite confidence.")
    calibration = calibration_of(seen.confidence[sure], seen.right[sure])
    return reliability_chart(calibration)


def share(which: NDArray[np.bool_]) -> float:
    return float(which.mean()) if len(which) else 0.0
