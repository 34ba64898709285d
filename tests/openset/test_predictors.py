"""Embeddings of predictors: the head's input for one network, an error for an ensemble."""

from __future__ import annotations

import pytest
import torch

from fedwild.contract.task import Task
from fedwild.core.errors import UserError
from fedwild.core.rng import Rng
from fedwild.openset import SCORES
from fedwild.openset.predictors import ScoredModel, Vote


def test_the_prediction_is_the_head_applied_to_the_embedding() -> None:
    task = Task((1, 8, 8), "simple-cnn")
    model = task.build(4, Rng(0))
    predictor = ScoredModel(model, 3, SCORES.make("msp"))
    x = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    embedding = predictor.embed(x)
    assert embedding.shape == (5, model.embedding_dim)
    assert not embedding.requires_grad
    with torch.inference_mode():
        assert torch.equal(model.head(embedding)[:, :3], predictor.predict(x).logits)


def test_an_ensemble_has_no_common_embedding() -> None:
    members = {name: Task((6,), "mlp").build(3, Rng(seed)) for seed, name in enumerate("ab")}
    with pytest.raises(UserError, match=r"^Vote does not answer with one network, so it has no common embedding\."):
        Vote(members, 3, SCORES.make("msp")).embed(torch.zeros(2, 6))
