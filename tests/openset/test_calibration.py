"""Thresholds accept what they promise, and decisions follow them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedwild.openset.calibration import (
    decide,
    decide_by_extra_class,
    dias_threshold,
    per_class_thresholds,
    threshold_at_acceptance,
)
from fedwild.openset.metrics import UNKNOWN
from fedwild.openset.scores import msp

repeatable = settings(derandomize=True, max_examples=200, deadline=None, database=None)
tied_scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=60).map(np.array)
shares = st.integers(1, 100).map(lambda percent: percent / 100)


@repeatable
@given(tied_scores, shares)
def test_threshold_accepts_at_least_the_share_and_is_the_smallest_that_does(u, accept):
    t = threshold_at_acceptance(u, accept)
    assert t in u
    assert np.mean(u <= t) >= accept
    assert np.mean(u < t) < accept  # any smaller threshold admits at most these


@pytest.mark.parametrize("n", [100, 20, 7, 3])
def test_threshold_is_exact_at_every_k_of_n(n):
    u = np.arange(n, dtype=float)
    assert [threshold_at_acceptance(u, k / n) for k in range(1, n + 1)] == u.tolist()


def test_threshold_takes_torch_scores_and_keeps_float32_values():
    u = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    t = threshold_at_acceptance(u, 0.6)
    assert t == u[1].item()
    assert decide(torch.zeros(3, 1), u.detach(), t).tolist() == [0, 0, UNKNOWN]


def test_threshold_of_nothing_accepts_everything():
    t = threshold_at_acceptance(np.array([]))
    assert t == math.inf
    assert decide(torch.zeros(2, 1), torch.tensor([1e300, math.inf]), t).tolist() == [0, 0]


def test_nan_scores_count_as_the_most_unknown():
    assert threshold_at_acceptance(np.array([math.nan, 1.0, 2.0, 3.0]), 0.75) == 3.0
    assert threshold_at_acceptance(np.array([math.nan, 1.0]), 0.75) == math.inf


@pytest.mark.parametrize("accept", [0.0, -0.1, 1.1, math.nan])
def test_impossible_acceptance_is_refused(accept):
    with pytest.raises(ValueError, match="accept"):
        threshold_at_acceptance(np.array([1.0]), accept)


def test_scores_must_be_one_dimensional():
    with pytest.raises(ValueError, match="shape"):
        threshold_at_acceptance(np.zeros((2, 2)))


def test_per_class_thresholds_apply_the_rule_within_each_class_and_fall_back_to_all():
    u, predicted = torch.tensor([1.0, 2.0, 10.0, 20.0]), torch.tensor([0, 0, 2, 2])
    thresholds = per_class_thresholds(u, predicted, 3, accept=0.5)
    assert thresholds.tolist() == [1.0, 2.0, 10.0]
    assert per_class_thresholds(u[:0], predicted[:0], 2).tolist() == [math.inf, math.inf]


@repeatable
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 2)), min_size=1), shares)
def test_per_class_thresholds_accept_the_share_of_every_class(samples, accept):
    u, predicted = (torch.tensor(column) for column in zip(*samples, strict=True))
    answers = decide(torch.nn.functional.one_hot(predicted, 3), u, per_class_thresholds(u, predicted, 3, accept))
    for k in predicted.unique():
        assert (answers[predicted == k] == k).double().mean() >= accept


def test_per_class_thresholds_refuse_ids_outside_the_classes_and_other_lengths():
    with pytest.raises(ValueError, match=r"0\.\.1"):
        per_class_thresholds(torch.zeros(1), torch.tensor([2]), 2)
    with pytest.raises(ValueError, match="same shape"):
        per_class_thresholds(torch.zeros(2), torch.tensor([0]), 2)


def test_decide_rejects_above_the_threshold_and_accepts_at_it():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    answers = decide(logits, torch.tensor([0.5, 0.5, 0.6]), 0.5)
    assert answers.tolist() == [0, 1, UNKNOWN] and answers.dtype == torch.int64


def test_decide_uses_the_threshold_of_the_predicted_class():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert decide(logits, torch.tensor([0.5, 0.5]), torch.tensor([0.4, 0.6])).tolist() == [UNKNOWN, 1]
    assert decide(logits, torch.tensor([0.5, 0.5]), np.array([0.6, 0.4])).tolist() == [0, UNKNOWN]


def test_decide_never_accepts_a_nan_score():
    assert decide(torch.zeros(1, 2), torch.tensor([math.nan]), math.inf).tolist() == [UNKNOWN]


def test_decide_refuses_wrong_shapes():
    for logits, u, t in [
        (torch.zeros(2), torch.zeros(2), 0.0),
        (torch.zeros(2, 3), torch.zeros(3), 0.0),
        (torch.zeros(2, 3), torch.zeros(2), torch.zeros(2)),
    ]:
        with pytest.raises(ValueError, match="must be"):
            decide(logits, u, t)


def test_decide_works_on_no_samples():
    assert decide(torch.zeros(0, 2), torch.zeros(0), torch.zeros(2)).shape == (0,)


def test_extra_class_means_unknown():
    outputs = torch.tensor([[1.0, 0.0, 2.0], [3.0, 0.0, 2.0], [0.0, 3.0, 2.0]])
    assert decide_by_extra_class(outputs).tolist() == [UNKNOWN, 0, 1]
    assert decide_by_extra_class(outputs[:, :2]).tolist() == [0, 0, UNKNOWN]
    with pytest.raises(ValueError, match="K\\+1"):
        decide_by_extra_class(outputs[:, :1])


def test_dias_threshold_accepts_strictly_above_its_probability():
    limit = 0.5 / 2 + 0.5 - 0.05
    p = torch.tensor([limit, math.nextafter(limit, 1.0), 0.9], dtype=torch.float64)
    assert decide(torch.zeros(3, 2), -p, dias_threshold(2)).tolist() == [UNKNOWN, 0, 0]
    assert decide(torch.eye(2) * 9, msp(torch.eye(2) * 9), dias_threshold(2)).tolist() == [0, 1]
