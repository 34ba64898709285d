"""Thresholds accept the chosen share of samples, and decisions follow them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fedwild.openset.calibration import (
    decide,
    per_class_thresholds,
    threshold_at_acceptance,
)
from fedwild.openset.metrics import UNKNOWN

repeatable = settings(derandomize=True, max_examples=200, deadline=None, database=None)
tied_scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=60).map(np.array)
shares = st.integers(1, 100).map(lambda percent: percent / 100)


@repeatable
@given(tied_scores, shares)
def test_the_threshold_is_the_smallest_that_accepts_the_share(u: NDArray[np.float64], accept: float) -> None:
    t = threshold_at_acceptance(u, accept)
    assert t in u
    assert np.mean(u <= t) >= accept
    assert np.mean(u < t) < accept  # any smaller threshold accepts at most these


@pytest.mark.parametrize("n", [100, 20, 7, 3])
def test_threshold_is_exact_at_every_k_of_n(n: int) -> None:
    u = np.arange(n, dtype=float)
    assert [threshold_at_acceptance(u, k / n) for k in range(1, n + 1)] == u.tolist()


def test_torch_scores_in_float32_keep_their_values() -> None:
    u = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    t = threshold_at_acceptance(u, 0.6)
    assert t == u[1].item()
    assert decide(torch.zeros(3, 1), u.detach(), t).tolist() == [0, 0, UNKNOWN]


def test_without_samples_the_threshold_accepts_everything() -> None:
    t = threshold_at_acceptance(np.array([]))
    assert t == math.inf
    assert decide(torch.zeros(2, 1), torch.tensor([1e300, math.inf]), t).tolist() == [0, 0]


def test_nan_scores_count_as_the_most_unknown() -> None:
    assert threshold_at_acceptance(np.array([math.nan, 1.0, 2.0, 3.0]), 0.75) == 3.0
    assert threshold_at_acceptance(np.array([math.nan, 1.0]), 0.75) == math.inf


@pytest.mark.parametrize("accept", [0.0, -0.1, 1.1, math.nan])
def test_an_invalid_share_is_rejected(accept: float) -> None:
    with pytest.raises(ValueError, match="accept"):
        threshold_at_acceptance(np.array([1.0]), accept)


def test_scores_must_be_one_dimensional() -> None:
    with pytest.raises(ValueError, match="shape"):
        threshold_at_acceptance(np.zeros((2, 2)))


def test_a_class_without_samples_gets_the_common_threshold() -> None:
    u, predicted = torch.tensor([1.0, 2.0, 10.0, 20.0]), torch.tensor([0, 0, 2, 2])
    thresholds = per_class_thresholds(u, predicted, 3, accept=0.5)
    assert thresholds.tolist() == [1.0, 2.0, 10.0]
    assert per_class_thresholds(u[:0], predicted[:0], 2).tolist() == [math.inf, math.inf]


@repeatable
@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 2)), min_size=1), shares)
def test_per_class_thresholds_accept_the_share_of_every_class(samples: list[tuple[int, int]], accept: float) -> None:
    u, predicted = (torch.tensor(column) for column in zip(*samples, strict=True))
    answers = decide(torch.nn.functional.one_hot(predicted, 3), u, per_class_thresholds(u, predicted, 3, accept))
    for k in predicted.unique():
        assert (answers[predicted == k] == k).double().mean() >= accept


def test_per_class_thresholds_reject_invalid_ids_and_lengths() -> None:
    with pytest.raises(ValueError, match=r"0\.\.1"):
        per_class_thresholds(torch.zeros(1), torch.tensor([2]), 2)
    with pytest.raises(ValueError, match="same shape"):
        per_class_thresholds(torch.zeros(2), torch.tensor([0]), 2)


def test_decide_rejects_above_the_threshold_and_accepts_at_it() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    answers = decide(logits, torch.tensor([0.5, 0.5, 0.6]), 0.5)
    assert answers.tolist() == [0, 1, UNKNOWN] and answers.dtype == torch.int64


def test_decide_uses_the_threshold_of_the_predicted_class() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert decide(logits, torch.tensor([0.5, 0.5]), torch.tensor([0.4, 0.6])).tolist() == [UNKNOWN, 1]
    assert decide(logits, torch.tensor([0.5, 0.5]), np.array([0.6, 0.4])).tolist() == [0, UNKNOWN]


def test_decide_never_accepts_a_nan_score() -> None:
    assert decide(torch.zeros(1, 2), torch.tensor([math.nan]), math.inf).tolist() == [UNKNOWN]


def test_decide_rejects_wrong_shapes() -> None:
    cases: list[tuple[Tensor, Tensor, float | Tensor]] = [
        (torch.zeros(2), torch.zeros(2), 0.0),
        (torch.zeros(2, 3), torch.zeros(3), 0.0),
        (torch.zeros(2, 3), torch.zeros(2), torch.zeros(2)),
    ]
    for logits, u, t in cases:
        with pytest.raises(ValueError, match="must be"):
            decide(logits, u, t)


def test_decide_accepts_empty_batches() -> None:
    assert decide(torch.zeros(0, 2), torch.zeros(0), torch.zeros(2)).shape == (0,)
