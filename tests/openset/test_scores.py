"""Unknown scores: closed forms, edge cases (K = 1, huge logits) and settings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedwild.core.component import summary_of
from fedwild.core.errors import UserError
from fedwild.openset.scores import (
    SCORES,
    Signals,
    energy,
    entropy,
    maxlogit,
    msp,
    placeholder,
    unknown_probability,
)

NAMES = SCORES.names()


def make_score(name: str, params: dict[str, Any] | None = None) -> Callable[[Tensor], Tensor]:
    """Return a score as a function of all outputs, the last of which is "unknown" if the score reads one."""
    score = SCORES.make(name, params)
    return lambda outputs: score.score(Signals(outputs, outputs.shape[1] - score.needs_unknown), {})


LOGITS = torch.tensor([[0.0, math.log(3.0)], [2.0, 2.0]])


def test_closed_forms() -> None:
    assert msp(LOGITS).tolist() == pytest.approx([-0.75, -0.5])
    assert maxlogit(LOGITS).tolist() == pytest.approx([-math.log(3), -2.0])
    assert energy(LOGITS).tolist() == pytest.approx([-math.log(4), -2 - math.log(2)])
    assert entropy(LOGITS).tolist() == pytest.approx([math.log(4) - 0.75 * math.log(3), math.log(2)])


def test_energy_at_a_temperature_and_its_limit() -> None:
    expected = [-2 * math.log(1 + math.sqrt(3)), -2 - 2 * math.log(2)]
    assert make_score("energy", {"temperature": 2})(LOGITS).tolist() == pytest.approx(expected)
    assert energy(LOGITS, 1e-3).tolist() == pytest.approx(maxlogit(LOGITS).tolist(), abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_confident_sample_is_less_unknown_than_a_flat_one(name: str) -> None:
    confident, flat = make_score(name)(torch.tensor([[9.0, 0.0, 0.0], [1.0, 1.0, 1.0]]))
    assert confident < flat


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_huge_logits_give_finite_float64_scores(name: str, dtype: torch.dtype) -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4], [1e4, 1e4, 1e4]], dtype=dtype)
    u = make_score(name)(logits)
    assert u.shape == (3,) and u.dtype == torch.float64 and u.isfinite().all()


def test_msp_distinguishes_confident_float32_samples() -> None:
    u = msp(torch.tensor([[20.0, 0.0], [25.0, 0.0]], dtype=torch.float32))
    assert u[1] < u[0]


@pytest.mark.parametrize("name", NAMES)
def test_one_class_and_empty_batches(name: str) -> None:
    score = make_score(name)
    assert score(torch.zeros(0, 3)).shape == (0,)
    one_class = torch.tensor([[3.0, 1.0], [-3.0, 1.0]])[:, : 1 + SCORES.get(name).needs_unknown]
    assert score(one_class).isfinite().all()


def test_with_one_class_softmax_scores_are_constant_and_logit_scores_are_not() -> None:
    logits = torch.tensor([[3.0], [-3.0]])
    assert msp(logits).tolist() == [-1.0, -1.0]
    assert entropy(logits).tolist() == [0.0, 0.0]
    assert maxlogit(logits).tolist() == energy(logits).tolist() == [-3.0, 3.0]


def test_wrong_shape_raises_value_error() -> None:
    for logits in (torch.zeros(3), torch.zeros(3, 0)):
        with pytest.raises(ValueError, match=r"\(n, K\)"):
            msp(logits)


@pytest.mark.parametrize("name", NAMES)
def test_registered_scores_describe_themselves(name: str) -> None:
    kind = SCORES.get(name)
    assert kind.name == name and summary_of(kind).endswith(".")
    assert all(row["description"] for row in kind.Params.describe())


def test_unknown_score_suggests_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"score 'enrgy' is not known\. Did you mean 'energy'\?"):
        make_score("enrgy")


@pytest.mark.parametrize("value", [0, -1.5, "warm", math.inf, math.nan, None])
def test_an_invalid_setting_is_rejected_with_key_value_and_limits(value: Any) -> None:
    with pytest.raises(UserError) as caught:
        make_score("energy", {"temperature": value})
    (message,) = caught.value.problems
    assert message.startswith(f"score.temperature = {value!r} is not allowed: it must be")
    assert message.endswith("(number, > 0).")


def test_an_unknown_setting_is_rejected_with_the_allowed_ones() -> None:
    with pytest.raises(UserError, match=r"score\.temprature is not a setting.*'temperature'"):
        make_score("energy", {"temprature": 2})
    with pytest.raises(UserError, match=r"score\.temperature is not a setting.*nothing"):
        make_score("msp", {"temperature": 2})


def test_scores_of_the_unknown_output_equal_their_formulas() -> None:
    outputs = torch.tensor([[1.0, 2.0, 0.5], [0.0, 0.0, 3.0]], dtype=torch.float64)
    p = np.exp(outputs.numpy()) / np.exp(outputs.numpy()).sum(axis=1, keepdims=True)
    assert np.allclose(unknown_probability(outputs).numpy(), p[:, -1])
    q = np.exp(outputs.numpy() / 1024) / np.exp(outputs.numpy() / 1024).sum(axis=1, keepdims=True)
    assert np.allclose(placeholder(outputs).numpy(), q[:, -1] - q[:, :-1].max(axis=1))


def test_a_placeholder_at_temperature_one_is_the_difference_of_probabilities() -> None:
    outputs = torch.randn(5, 4, dtype=torch.float64)
    p = outputs.softmax(dim=1)
    assert torch.allclose(placeholder(outputs, temperature=1.0), p[:, -1] - p[:, :-1].amax(dim=1))


def test_only_some_scores_read_the_unknown_output() -> None:
    outputs = torch.randn(3, 5)
    signals = Signals(outputs, classes=4)
    assert torch.equal(SCORES.make("msp").score(signals, {}), msp(outputs[:, :4]))
    assert torch.equal(SCORES.make("unknown").score(signals, {}), unknown_probability(outputs))
