"""FedProx: the gradient of the penalty, and plain FedAvg if mu is 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data.samples import Samples
from fedwild.models import build
from fedwild.training.corrections import ClientCorrection, Prox
from fedwild.training.corrections.prox import Pull
from fedwild.training.loop import LocalTraining, train
from fedwild.training.objectives import Objective
from tests import sketches  # noqa: F401  (registers toy-prox, FedProx by autograd)
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset, tiny_experiment


class Slope(Objective):
    """The loss 3 w, whose gradient is 3 for any w."""

    def loss(self, model: Any, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        return 3 * model.weight.sum()


def moved(mu: float) -> tuple[Any, Pull]:
    """Return a network in float64 that has moved away from its anchor, and its pull."""
    torch.manual_seed(0)
    model = build("digit-cnn", (1, 8, 8), 3).double()
    pull = Pull(model, mu)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    return model, pull


def loss_of(model: nn.Module) -> Tensor:
    x = torch.linspace(0, 1, 4 * 64, dtype=torch.float64).view(4, 1, 8, 8)
    return nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 0]))


def gradients(model: nn.Module) -> list[Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


def one_weight(value: float, samples: int = 2) -> tuple[Any, Samples]:
    """Return a network w x with one weight, and samples for it."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    rows = torch.arange(samples)
    return model, Samples(torch.ones(samples, 1), torch.zeros_like(rows), rows)


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2)


@pytest.fixture
def split(data: Any) -> Any:
    return split_by(data, 2, even_shares(data, 2, 3))


def test_the_gradient_equals_autograd_through_the_penalty() -> None:
    model, pull = moved(mu=0.3)
    pairs = zip(model.parameters(), pull.anchors, strict=True)
    (loss_of(model) + 0.3 / 2 * sum((p - a).pow(2).sum() for p, a in pairs)).backward()
    expected = gradients(model)
    loss_of(model).backward()
    pull.before_step()
    for ours, theirs in zip(gradients(model), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_two_steps_by_hand() -> None:
    model, samples = one_weight(1.0)
    settings = LocalTraining(epochs=1, batch_size=1, lr=0.1, momentum=0.0)
    trained = train(model, samples, settings, Slope(None), Pull(model, 0.5), Rng(0))
    # 1 - 0.1 * 3 = 0.7, then 0.7 - 0.1 * (3 + 0.5 * (0.7 - 1)) = 0.415
    assert model.weight.item() == pytest.approx(0.415, abs=1e-6)
    # The mean of 3 * 1 and 3 * 0.7: the penalty of the second step, 0.0225, is not in it.
    assert trained.loss == pytest.approx(2.55, abs=1e-6)


def test_a_weight_without_a_gradient_is_pulled_back_and_a_frozen_one_is_not() -> None:
    model = nn.Linear(1, 1)
    pull = Pull(model, 2.0)  # type: ignore[arg-type]
    with torch.no_grad():
        model.bias.add_(0.5)
    pull.before_step()
    assert model.bias.grad is not None
    assert model.bias.grad.item() == pytest.approx(1.0)
    frozen = nn.Linear(1, 1)
    frozen.weight.requires_grad = False
    Pull(frozen, 2.0).before_step()  # type: ignore[arg-type]
    assert frozen.weight.grad is None


def test_the_anchor_is_a_copy_of_the_received_weights() -> None:
    model, samples = one_weight(1.0)
    client_correction = Prox(Prox.Params(mu=0.5)).at_client(None, model, Payload())  # type: ignore[arg-type]
    assert isinstance(client_correction, Pull)
    train(model, samples, LocalTraining(), Slope(None), client_correction, Rng(0))
    assert client_correction.anchors[0].item() == 1.0


def test_with_mu_0_there_is_no_pull() -> None:
    model, _ = one_weight(1.0)
    assert type(Prox(Prox.Params(mu=0)).at_client(None, model, Payload())) is ClientCorrection  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_mu_0_is_plain_fedavg_bit_for_bit(optimizer: str, data: Any, split: Any, tmp_path: Path) -> None:
    method = {"method": {"optimizer": optimizer, "epochs": 2}}
    run_tiny(tmp_path / "none", "fedavg", data, split, method)
    run_tiny(tmp_path / "prox", "fedavg", data, split, {**method, "correction": {"name": "prox", "mu": 0.0}})
    assert model_bytes(tmp_path / "prox") == model_bytes(tmp_path / "none")


def test_mu_takes_effect(data: Any, split: Any, tmp_path: Path) -> None:
    run_tiny(tmp_path / "none", "fedavg", data, split)
    run_tiny(tmp_path / "default", "fedavg", data, split, {"correction": {"name": "prox"}})
    run_tiny(tmp_path / "more", "fedavg", data, split, {"correction": {"name": "prox", "mu": 0.5}})
    assert len({model_bytes(tmp_path / name) for name in ("none", "default", "more")}) == 3


def test_a_run_agrees_with_autograd(data: Any, split: Any, tmp_path: Path) -> None:
    for name in ("prox", "toy-prox"):
        result = run_tiny(tmp_path / name, "fedavg", data, split, {"correction": {"name": name, "mu": 0.5}})
        assert 0 <= result["metrics"]["closed_accuracy"] <= 1
    ours, theirs = (Payload.read(tmp_path / name / "model.safetensors").group("model") for name in ("prox", "toy-prox"))
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)


def test_the_model_is_bit_equal_with_workers(data: Any, split: Any, tmp_path: Path) -> None:
    for workers in (0, 2):
        settings = {"correction": {"name": "prox", "mu": 0.5}}
        run_tiny(tmp_path / str(workers), "fedavg", data, split, settings, workers=workers)
    assert model_bytes(tmp_path / "0") == model_bytes(tmp_path / "2")


def test_a_large_mu_keeps_the_model_near_its_start(data: Any, split: Any, tmp_path: Path) -> None:
    settings = {"method": {"rounds": 1, "epochs": 5, "lr": 0.01, "momentum": 0.0}}
    start = tiny_experiment("fedavg", data, split).task.build(2, Rng(0).child("start")).state_dict()

    def distance(folder: str, correction: dict[str, Any]) -> float:
        run_tiny(tmp_path / folder, "fedavg", data, split, {**settings, "correction": correction})
        model = Payload.read(tmp_path / folder / "model.safetensors").group("model")
        return sum(float((model[name] - start[name]).pow(2).sum()) for name in model)

    assert distance("far", {"name": "none"}) > 2 * distance("near", {"name": "prox", "mu": 50.0})


@pytest.mark.parametrize("mu", [-0.1, "much", float("inf")])
def test_an_invalid_mu_is_rejected_by_name(mu: Any, data: Any, split: Any) -> None:
    with pytest.raises(UserError, match=r"correction\.mu = .*>= 0"):
        tiny_experiment("fedavg", data, split, {"correction": {"name": "prox", "mu": mu}})
