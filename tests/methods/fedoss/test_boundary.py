"""Rules that say which samples lie near a decision boundary, on answers worked out by hand."""

from __future__ import annotations

import torch

from fedwild.methods.fedoss.boundary import (
    agreement,
    between,
    informed_agreement,
    lengths,
    scaled_to,
    shaken,
    small_margin,
)


def answers(*heads: list[int]) -> torch.Tensor:
    """Logits (heads, n, 3) whose largest entry is the class given for each sample; the next class comes second."""
    chosen = torch.tensor(heads)
    logits = torch.zeros(*chosen.shape, 3)
    logits.scatter_(2, ((chosen + 1) % 3).unsqueeze(2), 1.0)
    return logits.scatter_(2, chosen.unsqueeze(2), 2.0)


def test_agreement_is_the_share_of_heads_that_are_right() -> None:
    y = torch.tensor([0, 1, 2, 2])
    share = agreement(answers([0, 1, 0, 2], [0, 2, 0, 2], [0, 2, 1, 1]), y)
    assert torch.allclose(share, torch.tensor([1.0, 1 / 3, 0.0, 2 / 3], dtype=torch.float64))


def test_boundary_samples_lie_strictly_between() -> None:
    share = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    assert between(share, 0.0, 1.0).tolist() == [False, True, True, True, False]
    assert between(share, 0.25, 0.75).tolist() == [False, False, True, False, False]


def test_only_heads_that_know_the_class_are_asked() -> None:
    y = torch.tensor([0, 0, 1])
    held = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1]], dtype=torch.bool)
    # The third head has no class 0; the second has no class 1.
    share = informed_agreement(answers([0, 1, 1], [0, 0, 2], [1, 1, 1]), y, held)
    assert share.tolist() == [1.0, 0.5, 1.0]


def test_a_head_chooses_among_the_classes_its_client_holds() -> None:
    y = torch.tensor([0])
    held = torch.tensor([[1, 1, 0], [1, 1, 0]], dtype=torch.bool)
    # Class 2 comes first and 0 second: without class 2 the answer is right.
    assert agreement(answers([2], [2]), y).tolist() == [0.0]
    assert informed_agreement(answers([2], [2]), y, held).tolist() == [1.0]


def test_a_head_of_one_class_has_nothing_to_say() -> None:
    y = torch.tensor([0])
    held = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    assert informed_agreement(answers([0], [1], [0]), y, held).tolist() == [0.5]


def test_a_sample_that_one_head_alone_can_judge_counts_as_agreed_upon() -> None:
    y = torch.tensor([0])
    held = torch.tensor([[1, 1, 0], [0, 1, 1]], dtype=torch.bool)
    assert informed_agreement(answers([1], [1]), y, held).tolist() == [1.0]


def test_margin_is_the_distance_to_the_most_confusing_class() -> None:
    p = torch.tensor([[0.5, 0.4, 0.1], [0.9, 0.05, 0.05], [0.3, 0.6, 0.1]])
    assert small_margin(p.log(), torch.tensor([0, 0, 0]), 0.2).tolist() == [True, False, False]
    assert small_margin(p.log(), torch.tensor([0, 0, 0]), 0.35).tolist() == [True, False, True]


def test_a_single_class_has_no_margin() -> None:
    assert small_margin(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64), 0.9).tolist() == [False] * 3


def test_a_shake_is_as_long_as_asked_in_units_of_the_sample() -> None:
    h = torch.tensor([[3.0, 4.0], [0.0, 0.0], [30.0, 40.0]])
    moved = shaken(h, 0.5, torch.Generator().manual_seed(0)) - h
    assert torch.allclose(lengths(moved), torch.tensor([2.5, 0.0, 25.0]))


def test_directions_of_zero_stay_zero() -> None:
    scaled = scaled_to(torch.tensor([[0.0, 0.0], [0.0, 2.0]]), torch.tensor([5.0, 5.0]))
    assert scaled.tolist() == [[0.0, 0.0], [0.0, 5.0]]
