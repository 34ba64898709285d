"""Judging samples by margin, and what new rows must win by: against every candidate tried one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedwild.adaptation.judgement import accuracy, best_bias, check_judged, empty, joined, judged
from fedwild.data.samples import Samples
from fedwild.errors import BadReply


class Table(nn.Module):
    """A network whose logits are its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x


def judged_rows(logits: Tensor, y: Tensor, known: int, classes: int) -> dict[str, Tensor]:
    model: Any = Table()
    return judged(model, Samples(logits, y, torch.arange(len(y))), known, classes)


def random_case(seed: int, count: int = 400, known: int = 3, new: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(known + new, (count,), generator=generator)
    logits = torch.randn(count, known + new + 1, generator=generator)
    logits[torch.arange(count), y] += 1.0
    # New rows are too strong.
    logits[:, known : known + new] += 0.7
    return logits, y


def test_accuracy_at_any_bias_is_that_of_the_answers_with_new_logits_lowered() -> None:
    logits, y = random_case(0)
    found = judged_rows(logits, y, 3, 5)
    for bias in (-1.3, 0.0, 0.4, 2.2, math.inf):
        lowered = logits[:, :5].clone()
        lowered[:, 3:] -= bias
        # The order is another one.
        assert accuracy(found, bias).sum() == int((lowered.argmax(1) == y).sum()), bias


def test_three_samples_by_hand() -> None:
    logits = torch.tensor([[2.0, 1.0, 5.0], [0.0, 3.0, 1.0], [4.0, 0.0, 3.0]])
    found = judged_rows(logits, torch.tensor([2, 1, 1]), known=2, classes=3)
    # Margins 3, -2 and -1, sorted; the last sample's best old class is the wrong one.
    assert found["margin"].tolist() == [-2.0, -1.0, 3.0]
    assert found["new"].tolist() == [0, 0, 1]
    assert found["right"].tolist() == [1, 0, 1]
    assert accuracy(found, 0.0).tolist() == [True, False, True]
    assert accuracy(found, 3.0).tolist() == [True, False, False]


def test_outputs_beyond_the_classes_have_no_part() -> None:
    logits, y = random_case(1)
    louder = logits.clone()
    louder[:, 5] = 99.0
    first, second = judged_rows(logits, y, 3, 5), judged_rows(louder, y, 3, 5)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_without_new_classes_everything_is_as_it_was() -> None:
    logits, y = random_case(2)
    old = y < 3
    found = judged_rows(logits[old], y[old], 3, 3)
    assert not found["margin"].any()
    assert not found["new"].any()
    assert accuracy(found, 0.0).sum() == int((logits[old, :3].argmax(1) == y[old]).sum())


def test_the_model_before_gets_no_sample_of_a_new_class_right() -> None:
    logits, y = random_case(3)
    found = judged_rows(logits, y, 3, 3)
    right = (logits[:, :3].argmax(1) == y) & (y < 3)
    assert accuracy(found, math.inf).sum() == int(right.sum())


def test_margins_are_sorted_so_that_they_tell_nothing_about_the_order_of_samples() -> None:
    logits, y = random_case(4)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    first, second = judged_rows(logits, y, 3, 5), judged_rows(logits[order], y[order], 3, 5)
    assert (first["margin"].diff() >= 0).all()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_nobody_s_samples_are_judged_to_nothing() -> None:
    found = judged_rows(torch.empty(0, 6), torch.empty(0, dtype=torch.int64), 3, 5)
    check_judged(found, 0)
    assert joined([]).keys() == found.keys()
    assert best_bias(joined([found]), 3, 2) == 0.0
    assert len(accuracy(found, 0.0)) == 0


def test_clients_are_judged_together() -> None:
    parts = [judged_rows(*random_case(seed, count), 3, 5) for seed, count in ((0, 10), (1, 20))]
    both = joined(parts)
    assert len(both["margin"]) == 30
    assert accuracy(both, 0.3).sum() == sum(accuracy(part, 0.3).sum() for part in parts)


# --- what new rows must win by -------------------------------------------------------------------------------


def by_class_kind(found: dict[str, Tensor], bias: float, olds: int, news: int) -> float:
    """The mean accuracy over classes, written out."""
    right, new = accuracy(found, bias), found["new"].numpy() == 1
    return float(olds * right[~new].mean() + news * right[new].mean())


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("olds", "news"), [(3, 2), (1, 1), (9, 1)])
def test_the_best_bias_is_as_good_as_the_best_of_all_candidates_tried(seed: int, olds: int, news: int) -> None:
    found = judged_rows(*random_case(seed, 60), 3, 5)
    bias = best_bias(found, olds, news)
    margins = np.unique(found["margin"].double().numpy())
    candidates = [0.0, *((margins[1:] + margins[:-1]) / 2)]
    scores = {float(candidate): by_class_kind(found, candidate, olds, news) for candidate in candidates}
    top = max(scores.values())
    assert scores[bias] == pytest.approx(top, abs=1e-12)
    best = [abs(candidate) for candidate, score in scores.items() if score > top - 1e-9]
    assert abs(bias) == min(best)


def case(margins: list[float], new: list[int], right: list[int] | None = None) -> dict[str, Tensor]:
    flags = [new, right or [1] * len(new)]
    return {
        "margin": torch.tensor(margins),
        **{name: torch.tensor(value, dtype=torch.uint8) for name, value in zip(("new", "right"), flags, strict=True)},
    }


def test_a_bias_that_parts_old_from_new_is_found_by_hand() -> None:
    assert best_bias(case([1.0, 2.0, 4.0, 6.0], [0, 0, 1, 1]), 2, 2) == 3.0
    assert best_bias(case([-6.0, -4.0, -2.0, -1.0], [0, 0, 1, 1]), 2, 2) == -3.0


def test_what_is_right_already_is_left_alone() -> None:
    assert best_bias(case([-5.0, -1.0, 2.0, 9.0], [0, 0, 1, 1]), 2, 2) == 0.0


def test_classes_count_the_same_however_many_samples_they_have() -> None:
    # A bias of 0.7 gets nine old samples right and loses one of two new ones.
    found = case([0.5] * 9 + [0.3, 0.9], [0] * 9 + [1, 1])
    assert best_bias(found, 1, 1) == pytest.approx(0.7)
    assert best_bias(found, 1, 3) == 0.0


def test_samples_that_are_wrong_either_way_have_no_say() -> None:
    margins, new = [1.0, 2.0, 3.0, 4.0, 5.0], [0, 1, 0, 1, 1]
    assert best_bias(case(margins, new, [1, 1, 0, 1, 1]), 1, 1) == 1.5


@pytest.mark.parametrize("kind", [0, 1])
def test_without_samples_of_both_kinds_nothing_is_changed(kind: int) -> None:
    assert best_bias(case([1.0, 2.0, 3.0], [kind] * 3), 2, 2) == 0.0


# --- what is refused -----------------------------------------------------------------------------------------


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
def test_a_judgement_of_another_length_or_type_is_refused(name: str, tensor: Tensor | None) -> None:
    reply = {key: value.new_zeros(3) for key, value in empty().items()}
    check_judged(reply, 3)
    if tensor is None:
        del reply[name]
    else:
        reply[name] = tensor
    with pytest.raises(BadReply, match=f"judged tensor '{name}'"):
        check_judged(reply, 3)
