"""The figures compared with closed forms, scikit-learn and brute force, and their defining properties."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedwild.openset import metrics as m
from fedwild.openset.metrics import UNKNOWN

pytestmark = pytest.mark.filterwarnings("error")

repeatable = settings(derandomize=True, max_examples=100, deadline=None, database=None)
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Figure = Callable[..., float]

# Few distinct values, so that ties are common.
tied_scores = st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=25).map(np.array)
ids = st.integers(0, 4)


@st.composite
def known_side(draw: st.DrawFn) -> tuple[Floats, Bools]:
    u = draw(tied_scores)
    return u, np.array(draw(st.lists(st.booleans(), min_size=u.size, max_size=u.size)))


@st.composite
def open_answers(draw: st.DrawFn, n_classes: int = 4) -> tuple[Ints, Ints]:
    pairs = draw(st.lists(st.tuples(st.integers(-1, n_classes - 1), st.integers(-1, n_classes - 1)), min_size=1))
    decision, truth = np.array(pairs).T
    return decision, truth


@st.composite
def clusterings(draw: st.DrawFn, min_size: int = 1) -> tuple[Ints, Ints]:
    pairs = draw(st.lists(st.tuples(ids, ids), min_size=min_size, max_size=30))
    clusters, truth = np.array(pairs).T
    return clusters, truth


def oscr_by_loop(u_known: Floats, correct: Bools, u_unknown: Floats) -> float:
    """Return OSCR by its definition: a trapezoid between each two consecutive thresholds."""
    points = [(0.0, 0.0)]
    for t in sorted({*u_known.tolist(), *u_unknown.tolist()}):
        points.append((float(np.mean(u_unknown <= t)), float(np.sum((u_known <= t) & correct) / len(u_known))))
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in itertools.pairwise(points))


def hungarian_by_permutations(clusters: Ints, truth: Ints, n: int = 5) -> float:
    return max(float(np.mean(np.array(mapping)[clusters] == truth)) for mapping in itertools.permutations(range(n)))


# ------------------------------------------------------------------------------------- closed accuracy


def test_closed_accuracy_is_that_of_the_argmax_on_known_samples() -> None:
    logits = [[2.0, 1.0], [0.0, 3.0], [5.0, 0.0], [1.0, 0.0]]
    truth = [0, 0, UNKNOWN, 0]
    assert m.closed_accuracy(logits, truth) == pytest.approx(2 / 3)
    assert m.closed_accuracy([0, 1, 0, 0], truth) == pytest.approx(2 / 3)


def test_closed_accuracy_counts_a_row_with_nan_as_wrong() -> None:
    assert m.closed_accuracy([[math.nan, 0.0], [1.0, 0.0]], [0, 0]) == 0.5


# ------------------------------------------------------------------------------------- auroc, aupr, fpr


def test_auroc_counts_a_tie_as_one_half() -> None:
    assert m.auroc([1.0], [1.0]) == 0.5
    assert m.auroc([0.0, 1.0], [1.0, 2.0]) == 7 / 8
    assert m.auroc([0.0], [1.0]) == 1.0
    assert m.auroc([1.0], [0.0]) == 0.0


@repeatable
@given(tied_scores, tied_scores)
def test_ranking_figures_equal_scikit_learn(u_known: Floats, u_unknown: Floats) -> None:
    u = np.concatenate((u_known, u_unknown))
    is_unknown = np.repeat([0, 1], [u_known.size, u_unknown.size])
    assert m.auroc(u_known, u_unknown) == pytest.approx(sk.roc_auc_score(is_unknown, u), abs=1e-12)
    assert m.aupr_out(u_known, u_unknown) == pytest.approx(sk.average_precision_score(is_unknown, u), abs=1e-12)
    assert m.aupr_in(u_known, u_unknown) == pytest.approx(sk.average_precision_score(1 - is_unknown, -u), abs=1e-12)
    fpr, tpr, _ = sk.roc_curve(is_unknown, u, drop_intermediate=False)
    assert m.fpr95_unknown_pos(u_known, u_unknown) == pytest.approx(fpr[np.argmax(tpr >= 0.95)])
    fpr, tpr, _ = sk.roc_curve(1 - is_unknown, -u, drop_intermediate=False)
    assert m.fpr95_known_pos(u_known, u_unknown) == pytest.approx(fpr[np.argmax(tpr >= 0.95)])


@repeatable
@given(tied_scores, tied_scores)
def test_auroc_is_symmetric_and_invariant_under_increasing_maps(a: Floats, b: Floats) -> None:
    assert m.auroc(a, b) == pytest.approx(1 - m.auroc(b, a), abs=1e-15)
    assert m.auroc(a, b) == m.auroc(np.exp(a), np.exp(b)) == m.auroc(3 * a - 7, 3 * b - 7)


def test_aupr_depends_on_which_side_is_positive() -> None:
    u_known, u_unknown = [0.0, 1.0, 2.0], [3.0, 0.5]
    assert m.aupr_out(u_known, u_unknown) == pytest.approx((1 / 1 + 2 / 4) / 2)
    assert m.aupr_in(u_known, u_unknown) == pytest.approx((1 / 1 + 2 / 3 + 3 / 4) / 3)


def test_the_two_fpr95_conventions_differ() -> None:
    # 95 % of the unknown samples are rejected only at u = 0, where 3 of 4 known samples are rejected as well;
    # 95 % of the known samples are accepted only at u = 5, where one unknown sample is accepted.
    u_known, u_unknown = [-1.0, 1.0, 2.0, 5.0], [0.0] + [6.0] * 9
    assert m.fpr95_unknown_pos(u_known, u_unknown) == 0.75
    assert m.fpr95_known_pos(u_known, u_unknown) == 0.1


def test_fpr95_accepts_exactly_19_of_20_positives() -> None:
    u_known, u_unknown = np.arange(20.0), np.array([18.0, 18.5, 19.0])
    assert m.fpr95_known_pos(u_known, u_unknown) == pytest.approx(1 / 3)  # t = 18 accepts 19 of 20


# ------------------------------------------------------------------------------------- oscr, ccr


def test_oscr_by_hand() -> None:
    # t=1: (0, .5), t=2: (.5, .5), t=3: (.5, .5), since it is wrong, t=4: (1, .5).
    assert m.oscr([1.0, 3.0], [True, False], [2.0, 4.0]) == 0.5
    # The wrong sample comes first: (0, 0), then (.5, 0), (.5, .5), (1, .5).
    assert m.oscr([1.0, 3.0], [False, True], [2.0, 4.0]) == 0.25


@repeatable
@given(known_side(), tied_scores)
def test_oscr_equals_the_loop_and_is_at_most_auroc(known: tuple[Floats, Bools], u_unknown: Floats) -> None:
    u_known, correct = known
    value = m.oscr(u_known, correct, u_unknown)
    assert value == pytest.approx(oscr_by_loop(u_known, correct, u_unknown), abs=1e-12)
    assert value <= m.auroc(u_known, u_unknown)
    assert value <= correct.mean()


@repeatable
@given(tied_scores, tied_scores)
def test_oscr_is_exactly_auroc_at_full_closed_accuracy_and_zero_at_none(u_known: Floats, u_unknown: Floats) -> None:
    everything = np.ones(u_known.size, dtype=bool)
    assert m.oscr(u_known, everything, u_unknown) == m.auroc(u_known, u_unknown)
    assert m.oscr(u_known, ~everything, u_unknown) == 0.0


@repeatable
@given(known_side(), tied_scores, st.sampled_from([1e-4, 0.1, 0.2, 0.25, 0.5, 0.9, 1.0]))
def test_ccr_at_fpr_is_the_best_ccr_at_that_fpr(known: tuple[Floats, Bools], u_unknown: Floats, f: float) -> None:
    u_known, correct = known
    thresholds = [-math.inf, *u_known, *u_unknown]
    curve = [(np.mean(u_unknown <= t), np.sum((u_known <= t) & correct) / u_known.size) for t in thresholds]
    best = max(ccr for fpr, ccr in curve if fpr <= f)
    assert m.ccr_at_fpr(u_known, correct, u_unknown, (f,)) == {f: best}


def test_ccr_at_fpr_allows_exactly_that_rate() -> None:
    u_known, u_unknown = [0.5, 1.5, 2.5], np.arange(1.0, 11.0)
    correct = [True, True, True]
    assert m.ccr_at_fpr(u_known, correct, u_unknown, (0.1,)) == {0.1: pytest.approx(2 / 3)}
    assert m.ccr_at_fpr(u_known, correct, u_unknown, (0.0999,)) == {0.0999: pytest.approx(1 / 3)}
    assert list(m.ccr_at_fpr(u_known, correct, u_unknown)) == [1e-4, 1e-3, 1e-2, 1e-1]


# ------------------------------------------------------------------------------------- K + 1 classes


def test_confusion_matrix_has_truth_in_rows_and_unknown_last() -> None:
    matrix = m.confusion_matrix(decision=[0, 1, UNKNOWN, UNKNOWN, 0], truth=[0, 0, 1, UNKNOWN, UNKNOWN], n_classes=2)
    assert matrix.tolist() == [[1, 1, 0], [0, 0, 1], [1, 0, 1]]


@repeatable
@given(open_answers())
def test_open_figures_equal_scikit_learn_over_the_labels_that_occur(answers: tuple[Ints, Ints]) -> None:
    decision, truth = answers
    macro: dict[str, Any] = {"average": "macro", "zero_division": 0}
    assert m.open_accuracy(decision, truth) == pytest.approx(sk.accuracy_score(truth, decision))
    assert m.open_macro_precision(decision, truth, 4) == pytest.approx(sk.precision_score(truth, decision, **macro))
    assert m.open_macro_recall(decision, truth, 4) == pytest.approx(sk.recall_score(truth, decision, **macro))
    assert m.open_macro_f1(decision, truth, 4) == pytest.approx(sk.f1_score(truth, decision, **macro))
    labels = [0, 1, 2, 3, UNKNOWN]
    expected = sk.confusion_matrix(truth, decision, labels=labels)
    assert m.confusion_matrix(decision, truth, 4).tolist() == expected.tolist()


def test_macro_mean_is_over_all_k_plus_1_classes_that_occur() -> None:
    decision, truth = [0, 0, 1, UNKNOWN], [0, 1, 1, UNKNOWN]
    assert m.open_macro_precision(decision, truth, 2) == pytest.approx((1 / 2 + 1 + 1) / 3)
    assert m.open_macro_recall(decision, truth, 2) == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert m.open_macro_f1(decision, truth, 2) == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_a_class_absent_from_truth_and_decisions_is_excluded_from_the_macro_mean() -> None:
    decision, truth = [0, UNKNOWN], [0, UNKNOWN]
    for figure in (m.open_macro_precision, m.open_macro_recall, m.open_macro_f1):
        assert figure(decision, truth, 10) == 1.0


def test_a_class_absent_from_one_of_truth_and_decisions_counts_as_zero() -> None:
    assert m.open_macro_recall([0, 1], [0, 0], 2) == 0.25  # class 1 decided, never true
    assert m.open_macro_precision([0, 0], [0, 1], 2) == 0.25  # class 1 true, never decided
    assert m.open_macro_f1([0, 0], [0, 1], 2) == pytest.approx((2 / 3 + 0) / 2)


def test_openness_closed_forms() -> None:
    assert m.openness(10, 10) == 0.0
    assert m.openness(6, 10) == pytest.approx(1 - math.sqrt(12 / 16))
    assert m.openness(6, 10, 4) == pytest.approx(1 - math.sqrt(12 / 14))
    assert math.isnan(m.openness(0, 0))


def test_os_os_star_unk_and_hos_by_hand() -> None:
    truth = [0, 0, 1, 1, 1, 1, UNKNOWN, UNKNOWN, UNKNOWN]
    decision = [0, UNKNOWN, 1, 1, 1, 0, UNKNOWN, UNKNOWN, 1]
    assert m.os_star(decision, truth, 2) == pytest.approx((1 / 2 + 3 / 4) / 2)
    assert m.unk(decision, truth) == pytest.approx(2 / 3)
    assert m.os_score(decision, truth, 2) == pytest.approx((1 / 2 + 3 / 4 + 2 / 3) / 3)
    assert m.hos(decision, truth, 2) == pytest.approx(2 * 0.625 * (2 / 3) / (0.625 + 2 / 3))


def test_hos_is_zero_if_either_part_is_zero() -> None:
    assert m.hos([1, 0], [0, UNKNOWN], 2) == 0.0
    assert m.hos([0, 0], [0, UNKNOWN], 2) == 0.0


def test_os_excludes_known_classes_without_samples() -> None:
    assert m.os_star([0, 0], [0, 0], 5) == 1.0
    assert m.os_score([0, 0], [0, UNKNOWN], 5) == 0.5


# ------------------------------------------------------------------------------------- clustering


@repeatable
@given(clusterings())
def test_hungarian_accuracy_equals_brute_force(labels: tuple[Ints, Ints]) -> None:
    clusters, truth = labels
    assert m.hungarian_accuracy(clusters, truth) == pytest.approx(hungarian_by_permutations(clusters, truth))


def test_hungarian_accuracy_ignores_names_and_scores_unmatched_clusters_zero() -> None:
    assert m.hungarian_accuracy([70, 70, -3, -3], [1, 1, 0, 0]) == 1.0
    assert m.hungarian_accuracy([0, 1, 2, 3], [0, 0, 0, 0]) == 0.25
    assert m.hungarian_accuracy([0, 0, 0, 0], [0, 1, 2, 3]) == 0.25


def test_gal_accuracy_is_plain_on_old_and_hungarian_on_new_classes() -> None:
    truth = [0, 0, 1, 1, 2, 2, 3, 3]
    predicted = [
        0,
        1,
        1,
        1,
        7,
        7,
        6,
        0,
    ]  # classes 2 and 3 are found as 7 and 6; one new sample is answered with an old class
    assert m.gal_accuracy(predicted, truth, {0, 1}) == pytest.approx((6 / 8, 3 / 4, 3 / 4))


def test_gal_accuracy_never_matches_an_old_id_to_a_new_class() -> None:
    assert m.gal_accuracy([0, 0, 0], [0, 1, 1], {0}) == pytest.approx((1 / 3, 1.0, 0.0))


@repeatable
@given(clusterings())
def test_nmi_and_ari_equal_scikit_learn(labels: tuple[Ints, Ints]) -> None:
    clusters, truth = labels
    assert m.nmi(clusters, truth) == pytest.approx(sk.normalized_mutual_info_score(truth, clusters), abs=1e-9)
    assert m.ari(clusters, truth) == pytest.approx(sk.adjusted_rand_score(truth, clusters), abs=1e-9)


def test_nmi_and_ari_closed_forms() -> None:
    assert m.nmi([5, 5, 9, 9], [0, 0, 1, 1]) == m.ari([5, 5, 9, 9], [0, 0, 1, 1]) == 1.0
    assert m.nmi([0, 1, 0, 1], [0, 0, 1, 1]) == pytest.approx(0.0)
    assert m.ari([0, 1, 0, 1], [0, 0, 1, 1]) == -0.5
    assert m.nmi([0, 0], [3, 3]) == m.ari([0, 0], [3, 3]) == 1.0


def test_ari_is_exact_where_pair_counts_exceed_64_bits() -> None:
    truth = np.repeat([0, 1], 200_000)
    assert m.ari(1 - truth, truth) == 1.0


def test_forgetting_is_before_minus_after() -> None:
    assert m.forgetting(0.75, 0.5) == 0.25
    assert m.forgetting(0.5, 0.75) == -0.25


@pytest.mark.parametrize("figure", [m.auroc, m.aupr_out, m.aupr_in, m.fpr95_unknown_pos, m.fpr95_known_pos])
@pytest.mark.parametrize("sides", [([], [1.0]), ([1.0], []), ([], []), ([1.0, math.nan], [1.0]), ([1.0], [math.nan])])
def test_separation_is_nan_if_a_side_is_empty_or_has_a_nan(figure: Figure, sides: Any) -> None:
    assert math.isnan(figure(*sides))


@pytest.mark.parametrize(
    "sides", [([], [], [1.0]), ([1.0], [True], []), ([math.nan], [False], [1.0]), ([1.0], [True], [math.nan])]
)
def test_oscr_and_ccr_are_nan_if_a_side_is_empty_or_has_a_nan(sides: Any) -> None:
    assert math.isnan(m.oscr(*sides))
    assert all(math.isnan(value) for value in m.ccr_at_fpr(*sides).values())


def test_decision_figures_are_nan_without_samples() -> None:
    with_classes = (m.open_macro_precision, m.open_macro_recall, m.open_macro_f1, m.os_score, m.os_star, m.hos)
    assert all(math.isnan(figure([], [], 3)) for figure in with_classes)
    without = (m.closed_accuracy, m.open_accuracy, m.unk, m.hungarian_accuracy, m.nmi, m.ari)
    assert all(math.isnan(figure([], [])) for figure in without)
    assert all(map(math.isnan, m.gal_accuracy([], [], {0})))
    only_known, only_unknown = ([0, 1], [0, 0]), ([0, UNKNOWN], [UNKNOWN, UNKNOWN])
    assert math.isnan(m.unk(*only_known)) and math.isnan(m.os_star(*only_unknown, 2))
    for answers in (only_known, only_unknown):
        assert math.isnan(m.hos(*answers, 2)) and math.isnan(m.os_score(*answers, 2))
    assert math.isnan(m.closed_accuracy(*only_unknown))


@pytest.mark.parametrize(
    "call",
    [
        lambda: m.auroc([[1.0]], [1.0]),
        lambda: m.oscr([1.0, 2.0], [True], [1.0]),
        lambda: m.closed_accuracy([[1.0, 2.0]], [0, 1]),
        lambda: m.closed_accuracy(np.zeros((2, 0)), [0, 1]),
        lambda: m.open_accuracy([0], [0, 1]),
        lambda: m.open_accuracy([0.5], [0]),
        lambda: m.hungarian_accuracy([0], [0, 1]),
        lambda: m.confusion_matrix([0], [2], 2),
        lambda: m.confusion_matrix([-2], [0], 2),
        lambda: m.open_set_report([0.0, 1.0], [0.0, 1.0], [0, 1], [0, 1]),
        lambda: m.open_set_report([[0.0, 1.0]], [0.0], [5], [0]),
        lambda: m.open_set_report([[0.0, 1.0]], [0.0, 1.0], [1], [0]),
    ],
)
def test_wrong_shapes_and_ids_raise_value_error(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must"):
        call()


# ------------------------------------------------------------------------------------- report

REPORT_KEYS = {
    "closed_accuracy", "auroc", "aupr_out", "aupr_in", "fpr95_unknown_pos", "fpr95_known_pos", "oscr",
    "ccr_at_fpr_1e-4", "ccr_at_fpr_1e-3", "ccr_at_fpr_1e-2", "ccr_at_fpr_1e-1",
    "open_accuracy", "open_macro_precision", "open_macro_recall", "open_macro_f1",
    "os", "os_star", "unk", "hos",
}  # fmt: skip


def test_report_agrees_with_the_single_figures() -> None:
    rng = np.random.default_rng(0)
    n, k = 400, 5
    truth = rng.integers(-1, k, n)
    logits = rng.normal(size=(n, k)) + 2 * (truth[:, None] == np.arange(k))
    u = -logits.max(axis=1)
    decision = np.where(u > -1.5, UNKNOWN, logits.argmax(axis=1))
    report = m.open_set_report(logits, u, truth, decision)
    known = truth != UNKNOWN
    correct = logits.argmax(axis=1)[known] == truth[known]
    assert set(report) == REPORT_KEYS
    assert all(type(value) is float and 0 <= value <= 1 for value in report.values())
    assert report["closed_accuracy"] == correct.mean()
    assert report["auroc"] == m.auroc(u[known], u[~known])
    assert report["oscr"] == m.oscr(u[known], correct, u[~known])
    assert report["ccr_at_fpr_1e-1"] == m.ccr_at_fpr(u[known], correct, u[~known])[1e-1]
    assert report["fpr95_unknown_pos"] != report["fpr95_known_pos"]
    assert report["hos"] == m.hos(decision, truth, k)


def test_report_without_unknown_samples_keeps_its_keys_and_the_closed_figures() -> None:
    report = m.open_set_report([[1.0, 0.0], [0.0, 1.0]], [0.0, 1.0], [0, 1], [0, UNKNOWN])
    assert set(report) == REPORT_KEYS
    assert report["closed_accuracy"] == 1.0 and report["os_star"] == 0.5 and report["open_accuracy"] == 0.5
    assert all(math.isnan(report[key]) for key in ("auroc", "oscr", "unk", "os", "hos", "ccr_at_fpr_1e-1"))


def test_a_report_without_samples_is_all_nan() -> None:
    report = m.open_set_report(np.zeros((0, 3)), [], [], [])
    assert set(report) == REPORT_KEYS
    assert all(math.isnan(value) for value in report.values())


def test_report_works_for_a_single_known_class() -> None:
    report = m.open_set_report([[3.0], [1.0]], [-3.0, -1.0], [0, UNKNOWN], [0, UNKNOWN])
    assert report["auroc"] == report["oscr"] == report["open_macro_f1"] == report["hos"] == 1.0


def test_report_on_two_hundred_thousand_samples_is_fast() -> None:
    rng = np.random.default_rng(0)
    n, k = 200_000, 10
    truth, logits = rng.integers(-1, k, n), rng.normal(size=(n, k))
    started = time.process_time()
    m.open_set_report(logits, -logits.max(axis=1), truth, logits.argmax(axis=1))
    assert time.process_time() - started < 5
