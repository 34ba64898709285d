"""Diff^F and Diff^C by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedwild.methods.gains.probes import classifier_difference, embed_probes, feature_difference, feature_norm
from fedwild.models import build


def test_diff_f_is_the_mean_absolute_difference_over_probes_and_features() -> None:
    first = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    second = torch.tensor([[2.0, 2.0, 1.0], [0.0, -3.0, 0.0]])
    assert feature_difference(first, second) == (1 + 0 + 2 + 0 + 3 + 0) / (2 * 3)
    assert feature_difference(second, first) == 1.0
    assert feature_difference(first, first) == 0.0


def test_the_norm_of_the_released_program_is_not_divided_by_the_number_of_probes() -> None:
    first, second = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[4.0, 2.0], [0.0, -4.0]])
    assert feature_norm(first, second) == 5.0
    assert feature_norm(first.repeat(4, 1), second.repeat(4, 1)) == 10.0
    assert feature_difference(first.repeat(4, 1), second.repeat(4, 1)) == feature_difference(first, second)


def test_diff_c_is_half_the_sum_of_both_norms() -> None:
    first = {"head.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "head.bias": torch.tensor([1.0, 1.0])}
    second = {"head.weight": torch.tensor([[1.0, 0.0], [3.0, 2.0]]), "head.bias": torch.tensor([4.0, 5.0])}
    body = {"encoder.weight": torch.ones(3)}
    expected = (math.sqrt(4 + 4) + math.sqrt(9 + 16)) / 2
    assert classifier_difference(first, second) == pytest.approx(expected, rel=1e-12)
    # The encoder does not count.
    assert classifier_difference({**first, **body}, {**second, "encoder.weight": torch.zeros(3)}) == pytest.approx(
        expected
    )


def test_heads_without_bias_differ_in_their_weights_only() -> None:
    first, second = {"head.weight": torch.zeros(1, 2)}, {"head.weight": torch.tensor([[3.0, 4.0]])}
    assert classifier_difference(first, second) == 2.5


def test_probes_are_embedded_in_evaluation_mode_in_batches() -> None:
    torch.manual_seed(0)
    model = build("digit-cnn", (1, 8, 8), 3, params={"width": 0.05})
    model.train()
    probes = torch.rand(300, 1, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = embed_probes(model, probes)
    assert found.shape == (300, model.embedding_dim)
    assert torch.allclose(found[:7], embed_probes(model, probes[:7]), atol=1e-6)
    # Running means do not change.
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
