"""Margins of validation samples, and the best bias compared with a search over a grid."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedwild.core.errors import BadReply
from fedwild.data.samples import Samples
from fedwild.methods.gains.judge import (
    accuracy,
    best_bias,
    check_margins,
    concatenate,
    measure_margins,
    no_margins,
)


class Table(nn.Module):
    """A network whose logits are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x


def margins_of(logits: Tensor, y: Tensor, known: int, classes: int) -> dict[str, Tensor]:
    model: Any = Table()
    return measure_margins(model, Samples(logits, y, torch.arange(len(y))), known, classes)


def random_case(seed: int, count: int = 400, known: int = 3, new: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(known + new, (count,), generator=generator)
    logits = torch.randn(count, known + new + 1, generator=generator)
    logits[torch.arange(count), y] += 1.0
    # The logits of new classes are too large.
    logits[:, known : known + new] += 0.7
    return logits, y


def test_correct_answers_at_any_bias_are_those_with_lowered_new_logits() -> None:
    logits, y = random_case(0)
    found = margins_of(logits, y, 3, 5)
    for bias in (-1.3, 0.0, 0.4, 2.2, math.inf):
        lowered = logits[:, :5].clone()
        lowered[:, 3:] -= bias
        # The order of samples differs.
        assert accuracy(found, bias) == float((lowered.argmax(1) == y).double().mean()), bias


def test_three_samples_by_hand() -> None:
    logits = torch.tensor([[2.0, 1.0, 5.0], [0.0, 3.0, 1.0], [4.0, 0.0, 3.0]])
    found = margins_of(logits, torch.tensor([2, 1, 1]), known=2, classes=3)
    # Margins 3, -2 and -1, sorted; the best old class of the last sample is wrong.
    assert found["margin"].tolist() == [-2.0, -1.0, 3.0]
    assert found["new"].tolist() == [0, 0, 1]
    assert found["right"].tolist() == [1, 0, 1]
    assert accuracy(found, 0.0) == 2 / 3
    assert accuracy(found, 3.0) == 1 / 3


def test_outputs_beyond_the_classes_are_ignored() -> None:
    logits, y = random_case(1)
    louder = logits.clone()
    louder[:, 5] = 99.0
    first, second = margins_of(logits, y, 3, 5), margins_of(louder, y, 3, 5)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_without_new_classes_all_margins_are_0() -> None:
    logits, y = random_case(2)
    old = y < 3
    found = margins_of(logits[old], y[old], 3, 3)
    assert not found["margin"].any()
    assert not found["new"].any()
    assert accuracy(found, 0.0) == float((logits[old, :3].argmax(1) == y[old]).double().mean())


def test_the_model_from_before_classifies_no_sample_of_a_new_class_correctly() -> None:
    logits, y = random_case(3)
    found = margins_of(logits, y, 3, 3)
    right = (logits[:, :3].argmax(1) == y) & (y < 3)
    assert accuracy(found, math.inf) == float(right.double().mean())


def test_sorted_margins_do_not_reveal_the_order_of_samples() -> None:
    logits, y = random_case(4)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    first, second = margins_of(logits, y, 3, 5), margins_of(logits[order], y[order], 3, 5)
    assert (first["margin"].diff() >= 0).all()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_no_samples_give_empty_margins() -> None:
    found = margins_of(torch.empty(0, 6), torch.empty(0, dtype=torch.int64), 3, 5)
    check_margins(found, 0)
    assert concatenate([]).keys() == found.keys()
    assert best_bias(concatenate([found]), 3, 2) == 0.0
    assert math.isnan(accuracy(found, 0.0))


def test_margins_of_clients_are_concatenated() -> None:
    parts = [margins_of(*random_case(seed, count), 3, 5) for seed, count in ((0, 10), (1, 20))]
    both = concatenate(parts)
    assert len(both["margin"]) == 30
    assert accuracy(both, 0.3) == pytest.approx((10 * accuracy(parts[0], 0.3) + 20 * accuracy(parts[1], 0.3)) / 30)


# --- the bias --------------------------------------------------------------------------------------------------


def loss(found: dict[str, Tensor], biases: np.ndarray, olds: int, news: int) -> np.ndarray:
    """Return the cross-entropy of "old or new" at each bias, from its definition."""
    margin, new = found["margin"].double().numpy(), found["new"].numpy() == 1
    too_new = np.log1p(np.exp(margin[~new][None] - biases[:, None])).mean(1)
    too_old = np.log1p(np.exp(biases[:, None] - margin[new][None])).mean(1)
    return olds * too_new + news * too_old


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("olds", "news"), [(3, 2), (1, 1), (9, 1), (1, 9)])
def test_the_best_bias_minimises_the_loss_on_a_grid(seed: int, olds: int, news: int) -> None:
    found = margins_of(*random_case(seed, 60), 3, 5)
    bias = best_bias(found, olds, news)
    tried = np.linspace(-12, 12, 24_001)
    losses = loss(found, tried, olds, news)
    assert 0 < losses.argmin() < len(tried) - 1
    assert bias == pytest.approx(tried[losses.argmin()], abs=2e-3)
    assert loss(found, np.array([bias]), olds, news)[0] <= losses.min() + 1e-9


def case(margins: list[float], new: list[int], right: list[int] | None = None) -> dict[str, Tensor]:
    flags = [new, right or [1] * len(new)]
    return {
        "margin": torch.tensor(margins),
        **{name: torch.tensor(value, dtype=torch.uint8) for name, value in zip(("new", "right"), flags, strict=True)},
    }


def test_one_sample_of_each_kind_by_hand() -> None:
    # s(m_old - b) = s(b - m_new), so b is halfway.
    assert best_bias(case([1.0, 4.0], [0, 1]), 2, 2) == pytest.approx(2.5)
    assert best_bias(case([4.0, 1.0], [0, 1]), 2, 2) == pytest.approx(2.5)
    # With equal margins, 3 s(-b) = 1 s(b): e^b = 3.
    assert best_bias(case([0.0, 0.0], [0, 1]), 3, 1) == pytest.approx(math.log(3))


def test_the_bias_shifts_with_the_margins() -> None:
    found = margins_of(*random_case(5), 3, 5)
    higher = {**found, "margin": found["margin"] + 2.5}
    assert best_bias(higher, 3, 2) == pytest.approx(best_bias(found, 3, 2) + 2.5, abs=1e-5)


def test_classes_have_equal_weight_for_any_number_of_samples() -> None:
    found = case([0.5, -0.3, 1.0, 0.1], [0, 0, 1, 1])
    often = case([0.5, -0.3] * 20 + [1.0, 0.1], [0, 0] * 20 + [1, 1])
    assert best_bias(often, 2, 1) == pytest.approx(best_bias(found, 2, 1), abs=1e-5)
    assert best_bias(found, 1, 3) < best_bias(found, 1, 1) < best_bias(found, 3, 1)


@pytest.mark.parametrize("far", [1e3, 1e6, 3e38])
def test_extreme_margins_give_a_finite_bias(far: float) -> None:
    assert -far < best_bias(case([-far, far], [0, 1]), 2, 1) < far
    for margins, new in (([far, 0.3, 0.2], [1, 0, 1]), ([-far, 0.3, 0.2], [0, 0, 1]), ([far, -far, 0.1], [0, 1, 0])):
        assert math.isfinite(best_bias(case(margins, new), 3, 2))
    # The outermost sample is of the kind with little weight.
    assert math.isfinite(best_bias(case([far, -far, 0.1, 0.2], [0, 1, 0, 1]), 5, 1))


def test_without_new_classes_the_bias_is_0() -> None:
    assert best_bias(case([0.0, 1.0], [0, 1]), 2, 0) == 0.0


@pytest.mark.parametrize("kind", [0, 1])
def test_without_samples_of_both_kinds_the_bias_is_0(kind: int) -> None:
    assert best_bias(case([1.0, 2.0, 3.0], [kind] * 3), 2, 2) == 0.0


# --- what is rejected ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("margin", None),
        ("margin", torch.zeros(4)),
        ("margin", torch.zeros(3, 1)),
        ("margin", torch.zeros(3, dtype=torch.float64)),
        ("new", torch.zeros(2, dtype=torch.uint8)),
        ("new", torch.zeros(3)),
        ("right", torch.zeros(3, dtype=torch.int64)),
    ],
)
def test_margins_of_another_length_or_type_are_rejected(name: str, tensor: Tensor | None) -> None:
    reply = {key: value.new_zeros(3) for key, value in no_margins().items()}
    check_margins(reply, 3)
    if tensor is None:
        del reply[name]
    else:
        reply[name] = tensor
    with pytest.raises(BadReply, match=f"margins (lacks|tensor) .*'{name}'"):
        check_margins(reply, 3)
