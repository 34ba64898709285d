"""The figures that fedwild reports, each defined once, with its convention in the name or the docstring.

All functions take arrays and return floats: fractions in [0, 1], not percentages. `u` is an unknown score, larger =
more unknown. Class ids run from 0 to K-1; UNKNOWN (-1) is both the true label of samples of unknown classes and the
answer "unknown". Answers come first, truth second. A figure that is not defined for its input (no known or no unknown
samples, a NaN among the scores) is `nan`; wrong shapes and ids outside the K classes raise ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

UNKNOWN = -1
"""The id of the answer "unknown" and the true label of every sample of an unknown class."""

CCR_FPRS: dict[str, float] = {
    "ccr_at_fpr_1e-4": 1e-4,
    "ccr_at_fpr_1e-3": 1e-3,
    "ccr_at_fpr_1e-2": 1e-2,
    "ccr_at_fpr_1e-1": 1e-1,
}
"""The false positive rates at which CCR is reported, by their name in the report."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

NAN = float("nan")


# ------------------------------------------------------------------------------------- closed set


def closed_accuracy(answers: ArrayLike, truth: ArrayLike) -> float:
    """Accuracy among the K known classes, on known samples only.

    `answers` are logits (n, K), whose argmax is used without a threshold, or ids (n,). `truth` is (n,). A row of logits
    with a NaN counts as wrong.
    """
    predicted = _closed_predictions(answers) if np.ndim(answers) == 2 else _ids("answers", answers)
    truth = _ids("truth", truth)
    _same_length(answers=predicted, truth=truth)
    known = truth != UNKNOWN
    return _mean(predicted[known] == truth[known])


# ------------------------------------------------------------------------- separation of known and unknown


def auroc(u_known: ArrayLike, u_unknown: ArrayLike) -> float:
    """P(u(unknown) > u(known)), where ties count one half; either side may be called positive.

    It is never replaced by max(a, 1 - a). Both inputs are 1-d, of any length.
    """
    known, unknown = _scores("u_known", u_known), _scores("u_unknown", u_unknown)
    return _area_of_accepted(known, known.size, unknown)


def aupr_out(u_known: ArrayLike, u_unknown: ArrayLike) -> float:
    """Area under precision-recall with *unknown* as the positive side, ranked by u.

    The area is average precision (the step-wise sum, like scikit-learn's `average_precision_score`); the trapezoid over
    the same points, which OpenOOD uses, can be too optimistic.
    """
    return _average_precision(-_scores("u_unknown", u_unknown), -_scores("u_known", u_known))


def aupr_in(u_known: ArrayLike, u_unknown: ArrayLike) -> float:
    """Area under precision-recall with *known* as the positive side, ranked by -u; average precision."""
    return _average_precision(_scores("u_known", u_known), _scores("u_unknown", u_unknown))


def fpr95_unknown_pos(u_known: ArrayLike, u_unknown: ArrayLike) -> float:
    """Share of known samples rejected at the threshold that rejects 95 % of the unknown ones (OpenOOD, pytorch-ood).

    Unknown is positive: a sample is called unknown if u >= t, t is the strictest value with
    TPR = P(u_unknown >= t) >= 0.95, the result is P(u_known >= t).
    """
    return _fpr_at_tpr(-_scores("u_unknown", u_unknown), -_scores("u_known", u_known), 0.95)


def fpr95_known_pos(u_known: ArrayLike, u_unknown: ArrayLike) -> float:
    """Share of unknown samples accepted at the threshold that accepts 95 % of the known ones (ARPL, SSB: 1 - TNR).

    Known is positive: a sample is accepted if u <= t, t is the strictest value with
    TPR = P(u_known <= t) >= 0.95, the result is P(u_unknown <= t).
    """
    return _fpr_at_tpr(_scores("u_known", u_known), _scores("u_unknown", u_unknown), 0.95)


def oscr(u_known: ArrayLike, correct_known: ArrayLike, u_unknown: ArrayLike) -> float:
    """Open-set classification rate: the area of CCR over FPR, exact, trapezoid from (0, 0).

    At threshold t, CCR(t) is the fraction of *all* known samples that are correctly classified and have u <= t, and
    FPR(t) is the fraction of unknown samples with u <= t. A threshold accepts all tied samples at once, so that OSCR
    equals AUROC at 100 % closed accuracy, also with ties. (The routine of ARPL and SSB is off by one sample.)
    `correct_known` (n_known,) marks the known samples whose closed-set argmax is correct.
    """
    known, correct = _known_scores(u_known, correct_known)
    if np.isnan(known).any():
        return NAN
    return _area_of_accepted(known[correct], known.size, _scores("u_unknown", u_unknown))


def ccr_at_fpr(
    u_known: ArrayLike,
    correct_known: ArrayLike,
    u_unknown: ArrayLike,
    fprs: Sequence[float] = tuple(CCR_FPRS.values()),
) -> dict[float, float]:
    """CCR by false positive rate f: the largest CCR(t) of all thresholds with FPR(t) <= f.

    CCR and FPR are those of `oscr`. OpenOOD requires FPR(t) < f, which differs if f * n_unknown is a whole number.
    """
    known, correct = _known_scores(u_known, correct_known)
    unknown = _scores("u_unknown", u_unknown)
    if _undefined(known, unknown):
        return dict.fromkeys(fprs, NAN)
    thresholds = np.unique(np.concatenate((known, unknown)))
    ccr = _accepted(known[correct], thresholds) / known.size
    fpr = _accepted(unknown, thresholds) / unknown.size
    n_allowed = np.searchsorted(fpr, fprs, side="right")
    best = ccr[np.maximum(n_allowed - 1, 0)]
    return dict(zip(fprs, best.tolist(), strict=True))


# ---------------------------------------------------------------------- decisions over K + 1 classes


def confusion_matrix(decision: ArrayLike, truth: ArrayLike, n_classes: int) -> Ints:
    """Counts (K+1, K+1): rows are true classes, columns decisions; the last row and column are "unknown"."""
    answered = _open_ids("decision", decision, n_classes)
    true = _open_ids("truth", truth, n_classes)
    _same_length(decision=answered, truth=true)
    side = n_classes + 1
    return np.bincount(true * side + answered, minlength=side * side).reshape(side, side)


def open_accuracy(decision: ArrayLike, truth: ArrayLike) -> float:
    """Share of all samples, known and unknown, with a correct decision; all unknown classes count as one class."""
    answered, true = _ids("decision", decision), _ids("truth", truth)
    _same_length(decision=answered, truth=true)
    return _mean(answered == true)


def open_macro_precision(decision: ArrayLike, truth: ArrayLike, n_classes: int) -> float:
    """Mean precision over the K+1 classes, where all unknown classes are one.

    A class that occurs neither in the truth nor in the decisions is excluded from the mean; one that occurs only in the
    truth has precision 0. Equals scikit-learn's macro average over the labels that occur.
    """
    hits, true, answered = _class_counts(decision, truth, n_classes)
    return _macro(hits, answered, present=true + answered > 0)


def open_macro_recall(decision: ArrayLike, truth: ArrayLike, n_classes: int) -> float:
    """Mean recall over the K+1 classes, where all unknown classes are one.

    A class that occurs neither in the truth nor in the decisions is excluded; one that occurs only in the decisions has
    recall 0 (`os_score` excludes it as well).
    """
    hits, true, answered = _class_counts(decision, truth, n_classes)
    return _macro(hits, true, present=true + answered > 0)


def open_macro_f1(decision: ArrayLike, truth: ArrayLike, n_classes: int) -> float:
    """Mean of the F1 of each of the K+1 classes (not the F1 of mean precision and mean recall).

    A class that occurs neither in the truth nor in the decisions is excluded from the mean.
    """
    hits, true, answered = _class_counts(decision, truth, n_classes)
    return _macro(2 * hits, true + answered, present=true + answered > 0)


def openness(n_train_classes: int, n_test_classes: int, n_target_classes: int | None = None) -> float:
    """1 - sqrt(2 * train / (test + target)): 0 for a closed set, close to 1 with many unknown classes.

    `n_test_classes` counts known and unknown classes. The classes to be recognised (target) are those of training
    unless given.
    """
    target = n_train_classes if n_target_classes is None else n_target_classes
    if n_test_classes + target <= 0:
        return NAN
    return 1.0 - math.sqrt(2.0 * n_train_classes / (n_test_classes + target))


def os_score(decision: ArrayLike, truth: ArrayLike, n_classes: int) -> float:
    """OS: mean per-class accuracy over the K+1 classes; classes without samples are excluded.

    `nan` unless there are both known and unknown samples: without unknown ones it would equal OS*.
    """
    hits, true, _ = _class_counts(decision, truth, n_classes)
    if true[:-1].sum() == 0 or true[-1] == 0:
        return NAN
    return _macro(hits, true, present=true > 0)


def os_star(decision: ArrayLike, truth: ArrayLike, n_classes: int) -> float:
    """OS*: mean per-class accuracy over the K known classes; the answer "unknown" is wrong for a known sample.

    Classes without samples are excluded.
    """
    hits, true, _ = _class_counts(decision, truth, n_classes)
    return _macro(hits[:-1], true[:-1], present=true[:-1] > 0)


def unk(decision: ArrayLike, truth: ArrayLike) -> float:
    """UNK: share of the unknown samples with the answer "unknown"."""
    answered, true = _ids("decision", decision), _ids("truth", truth)
    _same_length(decision=answered, truth=true)
    return _mean(answered[true == UNKNOWN] == UNKNOWN)


def hos(decision: ArrayLike, truth: ArrayLike, n_classes: int) -> float:
    """HOS, the H-score: harmonic mean of OS* and UNK; 0 if both are 0."""
    known, unknown = os_star(decision, truth, n_classes), unk(decision, truth)
    total = known + unknown
    return 0.0 if total == 0 else 2.0 * known * unknown / total


def open_set_report(logits: ArrayLike, unknown: ArrayLike, truth: ArrayLike, decision: ArrayLike) -> dict[str, float]:
    """Every open-set figure of one evaluation, by name.

    `logits` (n, K) over the known classes, `unknown` (n,) unknown scores, `truth` and `decision` (n,) class ids or
    UNKNOWN. The threshold behind `decision` is chosen elsewhere, never on unknown test samples.
    """
    predicted = _closed_predictions(logits)
    n_classes = np.shape(logits)[1]
    u, true, decided = _scores("unknown", unknown), _ids("truth", truth), _ids("decision", decision)
    _same_length(logits=predicted, unknown=u, truth=true, decision=decided)

    known = true != UNKNOWN
    u_known, u_unknown, correct = u[known], u[~known], (predicted == true)[known]
    ccr = ccr_at_fpr(u_known, correct, u_unknown)
    return {
        "closed_accuracy": closed_accuracy(predicted, true),
        "auroc": auroc(u_known, u_unknown),
        "aupr_out": aupr_out(u_known, u_unknown),
        "aupr_in": aupr_in(u_known, u_unknown),
        "fpr95_unknown_pos": fpr95_unknown_pos(u_known, u_unknown),
        "fpr95_known_pos": fpr95_known_pos(u_known, u_unknown),
        "oscr": oscr(u_known, correct, u_unknown),
        **{name: ccr[f] for name, f in CCR_FPRS.items()},
        "open_accuracy": open_accuracy(decided, true),
        "open_macro_precision": open_macro_precision(decided, true, n_classes),
        "open_macro_recall": open_macro_recall(decided, true, n_classes),
        "open_macro_f1": open_macro_f1(decided, true, n_classes),
        "os": os_score(decided, true, n_classes),
        "os_star": os_star(decided, true, n_classes),
        "unk": unk(decided, true),
        "hos": hos(decided, true, n_classes),
    }


# --------------------------------------------------------------------------------- novel classes


class SplitAccuracy(NamedTuple):
    """Accuracy over all samples and over the samples of old (known) and of new (novel) classes."""

    all: float
    old: float
    new: float


def hungarian_accuracy(clusters: ArrayLike, truth: ArrayLike) -> float:
    """Clustering accuracy under the best one-to-one assignment of clusters to classes, over all samples.

    Every distinct id is a cluster, UNKNOWN included. Samples of unmatched clusters and classes count as wrong.
    """
    found, true = _two_labellings(clusters, truth)
    return _ratio(_matched_hits(found, true), true.size)


def gal_accuracy(predicted: ArrayLike, truth: ArrayLike, old_classes: Collection[int]) -> SplitAccuracy:
    """GAL's convention: plain accuracy for old classes, Hungarian accuracy for new ones, "all" for both together.

    The ids of old classes keep their meaning: a new sample answered with an old class is wrong, so that no id counts
    for an old and a new class at once (`hungarian_accuracy` on the new samples alone allows that).
    """
    found, true = _two_labellings(predicted, truth)
    old = _is_among(true, old_classes)
    discovered = ~old & ~_is_among(found, old_classes)
    new_hits = _matched_hits(found[discovered], true[discovered])
    return _split((found[old] == true[old]).sum(), new_hits, old)


def nmi(clusters: ArrayLike, truth: ArrayLike) -> float:
    """Normalised mutual information I / ((H1 + H2) / 2), arithmetic mean; 1 if both have only one group."""
    found, true = _two_labellings(clusters, truth)
    if true.size == 0:
        return NAN
    joint, rows, columns = _joint_counts(found, true)
    entropy_sum = _entropy(rows) + _entropy(columns)
    if entropy_sum == 0:
        return 1.0
    information = entropy_sum - _entropy(joint)
    return float(np.clip(2.0 * information / entropy_sum, 0.0, 1.0))


def ari(clusters: ArrayLike, truth: ArrayLike) -> float:
    """Adjusted Rand index: agreement on pairs; 0 by chance, 1 for equal partitions, may be negative."""
    found, true = _two_labellings(clusters, truth)
    if true.size == 0:
        return NAN
    # Pairs within groups, as Python ints: products of such numbers exceed 64 bits.
    pairs = [int((counts * (counts - 1) // 2).sum()) for counts in _joint_counts(found, true)]
    agreeing, in_clusters, in_classes = pairs
    total = math.comb(true.size, 2)
    chance = in_clusters * in_classes
    spread = total * (in_clusters + in_classes) - 2 * chance
    return 1.0 if spread == 0 else 2 * (total * agreeing - chance) / spread


def forgetting(accuracy_before: float, accuracy_after: float) -> float:
    """Accuracy on the known classes before minus after the novel stage; positive = forgotten."""
    return float(accuracy_before) - float(accuracy_after)


# --------------------------------------------------------------------------------- order statistics


def threshold_accepting(u: ArrayLike, fraction: float) -> float:
    """Return the smallest of the scores `u` such that at least `fraction` of them are <= it; `u` must not be empty."""
    ordered = np.sort(_scores("u", u))
    share = np.arange(1, ordered.size + 1) / ordered.size
    return float(ordered[np.searchsorted(share, fraction)])


def _fpr_at_tpr(positive: Floats, negative: Floats, tpr: float) -> float:
    """Share of negatives v <= t, where t is the smallest threshold that accepts `tpr` of the positives."""
    if _undefined(positive, negative):
        return NAN
    return _mean(negative <= threshold_accepting(positive, tpr))


def _accepted(u: Floats, thresholds: Floats) -> Ints:
    """Return how many samples have u <= t: first 0 (none accepted), then for each of the rising thresholds."""
    return np.concatenate(([0], np.searchsorted(np.sort(u), thresholds, side="right")))


def _area_of_accepted(counted: Floats, n_known: int, unknown: Floats) -> float:
    """Area of (accepted `counted` known samples / n_known) over (accepted unknown samples / n_unknown).

    The sum is over whole numbers, so it is exact up to the division.
    """
    if n_known == 0 or unknown.size == 0 or np.isnan(counted).any() or np.isnan(unknown).any():
        return NAN
    thresholds = np.unique(np.concatenate((counted, unknown)))
    height, width = _accepted(counted, thresholds), np.diff(_accepted(unknown, thresholds))
    twice_area = int(((height[1:] + height[:-1]) * width).sum())
    return twice_area / (2 * n_known * unknown.size)


def _average_precision(positive: Floats, negative: Floats) -> float:
    """Sum over distinct thresholds of (gain in recall) * precision, where v <= t is retrieved."""
    if _undefined(positive, negative):
        return NAN
    thresholds = np.unique(positive)
    true_positives, false_positives = _accepted(positive, thresholds), _accepted(negative, thresholds)
    precision = true_positives[1:] / (true_positives + false_positives)[1:]
    return float((np.diff(true_positives) * precision).sum() / positive.size)


# --------------------------------------------------------------------------------- counts


def _class_counts(decision: ArrayLike, truth: ArrayLike, n_classes: int) -> tuple[Ints, Ints, Ints]:
    """Return by class, unknown last, each (K+1,): correct decisions, true samples, decisions."""
    matrix = confusion_matrix(decision, truth, n_classes)
    return matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)


def _macro(part: Ints, whole: Ints, present: Bools) -> float:
    """Mean of part / whole over the classes that are present; 0 / 0 counts as 0."""
    return _mean(part[present] / np.maximum(whole[present], 1))


def _matched_hits(clusters: Ints, truth: Ints) -> int:
    """Return how many samples lie in the cluster that is assigned to their class."""
    class_ids, column = np.unique(truth, return_inverse=True)
    cluster_ids, row = np.unique(clusters, return_inverse=True)
    shape = (cluster_ids.size, class_ids.size)
    counts = np.bincount(row * shape[1] + column, minlength=shape[0] * shape[1]).reshape(shape)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return int(counts[rows, columns].sum())


def _split(old_hits: int, new_hits: int, old: Bools) -> SplitAccuracy:
    n_old = int(old.sum())
    return SplitAccuracy(
        all=_ratio(old_hits + new_hits, old.size),
        old=_ratio(old_hits, n_old),
        new=_ratio(new_hits, old.size - n_old),
    )


def _joint_counts(a: Ints, b: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the sizes of the non-empty intersections of two partitions, of the groups of `a` and of those of `b`."""
    _, group_a, sizes_a = np.unique(a, return_inverse=True, return_counts=True)
    _, group_b, sizes_b = np.unique(b, return_inverse=True, return_counts=True)
    _, joint = np.unique(group_a * sizes_b.size + group_b, return_counts=True)
    return joint, sizes_a, sizes_b


def _entropy(counts: Ints) -> float:
    p = counts / counts.sum()
    return float(-(p * np.log(p)).sum())


def _mean(values: NDArray[Any]) -> float:
    return float(values.mean()) if values.size else NAN


def _ratio(part: int, whole: int) -> float:
    return float(part / whole) if whole else NAN


# --------------------------------------------------------------------------------- reading the inputs


def _closed_predictions(logits: ArrayLike) -> Ints:
    """Return the argmax over logits (n, K), or UNKNOWN, which is never correct, if a logit is NaN."""
    z = np.asarray(logits)
    if z.ndim != 2 or z.shape[1] == 0:
        raise ValueError(f"logits must have shape (n, K) with K >= 1, not {z.shape}.")
    return np.where(np.isnan(z).any(axis=1), UNKNOWN, z.argmax(axis=1))


def _scores(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (n,), not {array.shape}.")
    return array


def _ids(name: str, values: ArrayLike) -> Ints:
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name} must have shape (n,), not {array.shape}.")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must be whole-number ids, not {array.dtype}.")
    return array.astype(np.int64)


def _open_ids(name: str, values: ArrayLike, n_classes: int) -> Ints:
    """Return ids 0..K, where K stands for UNKNOWN."""
    ids = _ids(name, values)
    if ids.size and not (ids.min() >= UNKNOWN and ids.max() < n_classes):
        raise ValueError(f"{name} must be ids 0..{n_classes - 1} or UNKNOWN ({UNKNOWN}), not {ids.min()}..{ids.max()}.")
    return np.where(ids == UNKNOWN, n_classes, ids)


def _known_scores(u_known: ArrayLike, correct_known: ArrayLike) -> tuple[Floats, Bools]:
    known, correct = _scores("u_known", u_known), np.asarray(correct_known, dtype=bool)
    _same_length(u_known=known, correct_known=correct)
    return known, correct


def _two_labellings(answers: ArrayLike, truth: ArrayLike) -> tuple[Ints, Ints]:
    found, true = _ids("clusters", answers), _ids("truth", truth)
    _same_length(clusters=found, truth=true)
    return found, true


def _is_among(ids: Ints, classes: Collection[int]) -> Bools:
    return np.isin(ids, np.asarray(list(classes), dtype=np.int64))


def _undefined(*scores: Floats) -> bool:
    return any(side.size == 0 or np.isnan(side).any() for side in scores)


def _same_length(**arrays: NDArray[Any]) -> None:
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"These must have the same shape: {shapes}.")
