"""The loss of the received model, which clients of AFL and q-FFL report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedwild.contract.task import weights_of
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data import Samples
from fedwild.methods.fairness import RECEIVED
from fedwild.training import loop
from fedwild.training.loop import mean_loss
from fedwild.training.objectives import OBJECTIVES, Objective
from tests.methods.by_hand import NORMED, WITH_NORMS, client_of, phase_of
from tests.models.cases import stir_norms
from tests.tiny import even_shares, split_by, tiny_dataset, tiny_experiment


def objective(name: str = "ce") -> Objective:
    return OBJECTIVES.make(name)


def samples(count: int) -> Samples:
    x = torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Samples(x, torch.arange(count) % 3, torch.arange(count))


def test_it_is_the_mean_over_samples_for_any_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    model = NORMED.build(3, Rng(0))
    stir_norms(model)
    before = weights_of(model)
    monkeypatch.setattr(loop, "INFERENCE_BATCH", 4)
    found = mean_loss(model.train(), samples(10), objective(), Rng(0))
    # Measuring changes nothing, not even the statistics of batch-norm.
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(model).items())
    assert all(parameter.grad is None for parameter in model.parameters())
    x, y = samples(10).all()
    with torch.no_grad():
        expected = F.cross_entropy(model.eval().double()(x.double()), y)
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_it_is_the_loss_of_the_objective() -> None:
    """Label shares are those of the client, and random terms do not depend on earlier draws."""
    model, skewed = NORMED.build(3, Rng(0)), samples(10).take([0, 3, 6, 9, 1])
    plain, balanced = (mean_loss(model, skewed, objective(name), Rng(0)) for name in ("ce", "balanced"))
    assert plain != balanced
    wide = NORMED.build(4, Rng(0))
    first, second = (mean_loss(wide, skewed, objective("outlier-aware"), Rng(0)) for _ in range(2))
    assert first == second


def test_it_is_none_without_samples() -> None:
    assert mean_loss(NORMED.build(3, Rng(0)), samples(3).take([]), objective(), Rng(0)) is None


@pytest.mark.parametrize("method", ["afl", "qffl"])
def test_clients_report_the_loss_of_the_received_model_and_train_like_fedavg(method: str, tmp_path: Path) -> None:
    data: Any = tiny_dataset(classes=2)
    split = split_by(data, 2, even_shares(data, 2, 1))
    settings = {**WITH_NORMS, "method": {"momentum": 0.5}}
    replies = {}
    received = weights_of(NORMED.build(2, Rng(4)))
    for name in (method, "fedavg"):
        experiment = tiny_experiment(name, data, split, settings)
        client = client_of(experiment, tmp_path)
        replies[name] = phase_of(experiment.method).local(Payload.of(model=received), client, Rng(0))
    x, y = client.train.all()
    with torch.no_grad():
        expected = F.cross_entropy(NORMED.network(received, 2).eval()(x), y)
    assert replies[method].info[RECEIVED] == pytest.approx(float(expected), rel=1e-5)
    assert replies[method].info["loss"] != replies[method].info[RECEIVED]
    for name, tensor in replies["fedavg"].group("model").items():
        assert torch.equal(tensor, replies[method].group("model")[name])
