"""Diff^F and Diff^C by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedwild.methods.gains.differences import classifier_difference, feature_difference, features
from fedwild.models import build


def test_diff_f_is_the_mean_absolute_difference_over_probes_and_features() -> None:
    first = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
    second = torch.tensor([[2.0, 2.0, 1.0], [0.0, -3.0, 0.0]])
    assert feature_difference(first, second) == (1 + 0 + 2 + 0 + 3 + 0) / (2 * 3)
    assert feature_difference(second, first) == 1.0
    assert feature_difference(first, first) == 0.0


def test_diff_c_is_half_the_sum_of_both_norms() -> None:
    first = {"head.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "head.bias": torch.tensor([1.0, 1.0])}
    second = {"head.weight": torch.tensor([[1.0, 0.0], [3.0, 2.0]]), "head.bias": torch.tensor([4.0, 5.0])}
    body = {"encoder.weight": torch.ones(3)}
    expected = (math.sqrt(4 + 4) + math.sqrt(9 + 16)) / 2
    assert classifier_difference(first, second) == pytest.approx(expected, rel=1e-12)
    # The encoder has no part in it.
    assert classifier_difference({**first, **body}, {**second, "encoder.weight": torch.zeros(3)}) == pytest.approx(
        expected
    )


def test_a_head_without_bias_differs_in_its_weights_alone() -> None:
    first, second = {"head.weight": torch.zeros(1, 2)}, {"head.weight": torch.tensor([[3.0, 4.0]])}
    assert classifier_difference(first, second) == 2.5


def test_features_are_embeddings_in_evaluation_mode_whatever_the_number_of_probes() -> None:
    torch.manual_seed(0)
    model = build("digit-cnn", (1, 8, 8), 3, params={"width": 0.05})
    model.train()
    probes = torch.rand(300, 1, 8, 8)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = features(model, probes)
    assert found.shape == (300, model.embedding_dim)
    assert torch.allclose(found[:7], features(model, probes[:7]), atol=1e-6)
    # Nothing of the probes stays in running means.
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
