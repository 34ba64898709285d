"""Rules that find the samples near a decision boundary, on answers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest
import torch

from fedwild.methods.fedoss.boundary import RULES, HeadRule, has_small_margin
from fedwild.methods.fedoss.heads import Bank, LightBranch
from fedwild.methods.fedoss.settings import BoundaryName, BoundarySettings
from fedwild.models import Network, build

H, Y = torch.rand(6, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])


def answers(*heads: list[int]) -> torch.Tensor:
    """Logits (heads, n, 3) whose largest entry is the class given for each sample; the next class comes second."""
    chosen = torch.tensor(heads)
    logits = torch.zeros(*chosen.shape, 3)
    logits.scatter_(2, ((chosen + 1) % 3).unsqueeze(2), 1.0)
    return logits.scatter_(2, chosen.unsqueeze(2), 2.0)


def bank_of(held: Sequence[Sequence[int]] = (), biases: Sequence[Sequence[float]] = ()) -> Bank:
    """Heads whose logits are their biases, zeros by default."""
    biases = biases or [[0.0] * 3 for _ in held]
    heads = [{"head.weight": torch.zeros(3, 8), "head.bias": torch.tensor(bias)} for bias in biases]
    return Bank(LightBranch(8, 3), heads, held, 3)


def rule_of(name: str, bank: Bank | None = None, **settings: Any) -> Any:
    return RULES[name](BoundarySettings(boundary=name, **settings), "fc1", bank or bank_of())


def network() -> Network:
    torch.manual_seed(1)
    return build("mlp", (7,), 4, params={"hidden": [8, 5]})


def agreement(name: str, logits: torch.Tensor, y: list[int], held: Sequence[Sequence[int]] = ()) -> list[float]:
    return rule_of(name, bank_of(held)).agreement(logits, torch.tensor(y)).tolist()


def test_every_value_of_the_setting_has_a_rule() -> None:
    assert tuple(RULES) == get_args(BoundaryName)
    assert [name for name, rule in RULES.items() if issubclass(rule, HeadRule)] == ["agreement", "informed"]


def test_agreement_is_the_share_of_heads_that_are_correct() -> None:
    found = agreement("agreement", answers([0, 1, 0, 2], [0, 2, 0, 2], [0, 2, 1, 1]), [0, 1, 2, 2])
    assert found == pytest.approx([1.0, 1 / 3, 0.0, 2 / 3])


def test_boundary_samples_lie_strictly_between_the_limits() -> None:
    s = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    assert rule_of("agreement").is_boundary(s).tolist() == [False, True, True, True, False]
    assert rule_of("informed", low=0.25, high=0.75).is_boundary(s).tolist() == [False, False, True, False, False]


def test_only_heads_that_know_the_class_count() -> None:
    # The third head's client has no class 0; the second one's has no class 1.
    logits = answers([0, 1, 1], [0, 0, 2], [1, 1, 1])
    assert agreement("informed", logits, [0, 0, 1], [[0, 1], [0, 2], [1, 2]]) == [1.0, 0.5, 1.0]


def test_a_head_chooses_among_the_classes_that_its_client_holds() -> None:
    # Class 2 comes first and 0 second: without class 2 the answer is correct.
    assert agreement("agreement", answers([2], [2]), [0]) == [0.0]
    assert agreement("informed", answers([2], [2]), [0], [[0, 1], [0, 1]]) == [1.0]


def test_a_head_of_one_class_does_not_count() -> None:
    assert agreement("informed", answers([0], [1], [0]), [0], [[0], [0, 1], [0, 2]]) == [0.5]


def test_a_sample_with_one_informed_head_counts_as_agreed() -> None:
    assert agreement("informed", answers([1], [1]), [0], [[0, 1], [1, 2]]) == [1.0]


@pytest.mark.parametrize("name", ["agreement", "informed"])
def test_heads_disagree_where_one_of_two_is_correct(name: str) -> None:
    bank = bank_of([[0, 1, 2], [0, 1, 2]], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    mask = rule_of(name, bank)(network(), H, Y, torch.Generator())
    assert mask.tolist() == [True, True, False, True, True, False]


@pytest.mark.parametrize("name", ["agreement", "informed"])
def test_without_heads_there_are_no_boundary_samples(name: str) -> None:
    assert not rule_of(name)(network(), H, Y, torch.Generator()).any()


def test_all_selects_every_sample() -> None:
    assert rule_of("all")(network(), H, Y, torch.Generator()).all()


def test_margin_is_the_distance_to_the_most_confusing_class() -> None:
    p = torch.tensor([[0.5, 0.4, 0.1], [0.9, 0.05, 0.05], [0.3, 0.6, 0.1]])
    assert has_small_margin(p.log(), torch.tensor([0, 0, 0]), 0.2).tolist() == [True, False, False]
    assert has_small_margin(p.log(), torch.tensor([0, 0, 0]), 0.35).tolist() == [True, False, True]


def test_a_single_class_has_no_margin() -> None:
    assert has_small_margin(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64), 0.9).tolist() == [False] * 3


@pytest.mark.parametrize("name", ["margin", "perturbation"])
def test_the_unknown_output_does_not_count(name: str) -> None:
    model, rule = network(), rule_of(name, width=0.3)
    before = rule(model, H, Y, torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.head.bias[3] += 100.0
    assert torch.equal(rule(model, H, Y, torch.Generator().manual_seed(0)), before)


def test_margin_uses_the_known_logits_of_the_network() -> None:
    model = network()
    expected = has_small_margin(model.after(H, "fc1")[:, :3].detach(), Y, 0.2)
    assert 0 < int(expected.sum()) < 6
    assert torch.equal(rule_of("margin", width=0.2)(model, H, Y, torch.Generator()), expected)


def test_a_strong_perturbation_changes_predictions_and_a_tiny_one_does_not() -> None:
    model = network()
    counts = [
        int(rule_of("perturbation", width=width)(model, H, Y, torch.Generator().manual_seed(1)).sum())
        for width in (1e-6, 50.0)
    ]
    assert counts[0] == 0 < counts[1]
