"""MOON: the printed contrastive loss, models that stay frozen, and plain FedAvg if mu is 0."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedwild.contract import Client, Step
from fedwild.contract.task import Task, weights_of
from fedwild.core.errors import UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.models import Network
from fedwild.models.norms import norm_layers
from fedwild.runs.events import read_events
from fedwild.training.corrections import ClientCorrection, Moon
from fedwild.training.corrections.moon import PREVIOUS, Contrast
from tests.tiny import even_shares, model_bytes, run_tiny, split_by, tiny_dataset, tiny_experiment

WITH_NORMS = {"name": "digit-cnn", "width": 0.1}
MOON = {"correction": {"name": "moon"}}
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.fixture
def data() -> Any:
    return tiny_dataset(classes=2)


@pytest.fixture
def split(data: Any) -> Any:
    return split_by(data, 2, even_shares(data, 2, 3))


def client_of(task: Task, state: Payload | None = None) -> Client:
    view: Any = None
    return Client("client-00", task, Step("train", 1, 1), ("a", "b", "c"), view, {}, state or Payload())


def batch() -> Tensor:
    return torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(5))


def moved(network: Network, seed: int, by: float = 0.1) -> Network:
    """Return the network after a random change of its weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=by)
    return network


class Setting:
    """A client in its second round: received weights, its previous ones, and a model that has changed since."""

    def __init__(self, model: str = "mlp", mu: float = 1.0, temperature: float = 0.5, **params: Any) -> None:
        self.task = Task((1, 8, 8), model, params)
        self.received = self.task.build(3, Rng(1))
        self.previous = moved(self.task.build(3, Rng(1)), seed=2)
        for layer in norm_layers(self.previous).values():
            layer.running_mean.sub_(0.3)  # type: ignore[union-attr]
        own = {name: t for name, t in weights_of(self.previous).items() if not name.startswith("head.")}
        self.client = client_of(self.task, Payload.of(previous=own))
        self.model = self.task.network(weights_of(self.received), 3)
        self.contrast = Moon(Moon.Params(mu=mu, temperature=temperature)).at_client(self.client, self.model, Payload())
        moved(self.model, seed=3)

    def embeddings(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return h, h_g and h_p (n, d), computed without the correction."""
        before = weights_of(self.model)
        h = self.model.embed(x)
        with torch.no_grad():
            for name, tensor in self.model.state_dict().items():
                if not name.endswith(("weight", "bias")):
                    tensor.copy_(before[name])
            return h, self.received.eval().embed(x), self.previous.eval().embed(x)


def penalty_by_hand(h: Tensor, h_g: Tensor, h_p: Tensor, mu: float, temperature: float) -> float:
    """Return the penalty, computed with plain numbers."""
    losses = []
    for a, b, c in zip(h.tolist(), h_g.tolist(), h_p.tolist(), strict=True):

        def cosine(other: list[float], a: list[float] = a) -> float:
            return sum(u * v for u, v in zip(a, other, strict=True)) / (math.hypot(*a) * math.hypot(*other))

        near, far = math.exp(cosine(b) / temperature), math.exp(cosine(c) / temperature)
        losses.append(-math.log(near / (near + far)))
    return mu * sum(losses) / len(losses)


# --- the penalty --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mu", "temperature"), [(1.0, 0.5), (5.0, 0.5), (0.1, 2.0)])
@pytest.mark.parametrize("model", [("mlp", {"hidden": [8, 6]}), ("digit-cnn", {"width": 0.1})])
def test_the_penalty_is_that_of_the_paper(model: Any, mu: float, temperature: float) -> None:
    setting = Setting(model[0], mu, temperature, **model[1])
    h, h_g, h_p = setting.embeddings(batch())
    expected = penalty_by_hand(h, h_g, h_p, mu, temperature)
    penalty = setting.contrast.penalty(batch(), LABELS)
    assert penalty is not None
    assert penalty.item() == pytest.approx(expected, rel=1e-5)
    # If the three agreed, it would be log 2.
    assert abs(expected - mu * math.log(2)) > 1e-3 * mu


def test_the_gradient_is_that_of_the_formula_and_reaches_only_the_local_model() -> None:
    setting = Setting(hidden=[8, 6])
    h, h_g, h_p = setting.embeddings(batch())
    near = (nn.functional.cosine_similarity(h, h_g) / 0.5).exp()
    far = (nn.functional.cosine_similarity(h, h_p) / 0.5).exp()
    body = {name: p for name, p in setting.model.named_parameters() if not name.startswith("head.")}
    expected = torch.autograd.grad(-(near / (near + far)).log().mean(), list(body.values()))
    penalty = setting.contrast.penalty(batch(), LABELS)
    assert penalty is not None
    penalty.backward()
    for p, theirs in zip(body.values(), expected, strict=True):
        assert p.grad is not None
        assert torch.allclose(p.grad, theirs, rtol=1e-4, atol=1e-7)
    assert setting.model.head.weight.grad is None
    assert isinstance(setting.contrast, Contrast)
    assert setting.contrast.pair is not None
    assert all(p.grad is None for network in setting.contrast.pair for p in network.parameters())


def test_descent_moves_towards_the_received_representation() -> None:
    setting = Setting(hidden=[8, 6])

    def lead() -> float:
        h, h_g, h_p = setting.embeddings(batch())
        difference = nn.functional.cosine_similarity(h, h_g) - nn.functional.cosine_similarity(h, h_p)
        return difference.mean().item()

    before = lead()
    optimiser = torch.optim.SGD([p for n, p in setting.model.named_parameters() if "head" not in n], lr=0.1)
    for _ in range(20):
        optimiser.zero_grad()
        penalty = setting.contrast.penalty(batch(), LABELS)
        assert penalty is not None
        penalty.backward()
        optimiser.step()
    assert lead() > before + 0.01


def test_the_frozen_models_do_not_change() -> None:
    setting = Setting("digit-cnn", width=0.1)
    assert isinstance(setting.contrast, Contrast)
    assert setting.contrast.pair is not None
    first, second = setting.contrast.pair
    setting.contrast.penalty(batch(), LABELS)
    moved(setting.model, seed=9, by=1.0)
    x = batch()
    with torch.no_grad():
        assert torch.equal(first.embed(x), setting.received.eval().embed(x))
        assert torch.equal(second.embed(x), setting.previous.eval().embed(x))
    assert not any(module.training for network in (first, second) for module in network.modules())


# --- batch-norm ---------------------------------------------------------------------------------------------


def test_the_second_pass_does_not_change_running_statistics() -> None:
    setting = Setting("digit-cnn", width=0.1)
    before = {name: b.clone() for name, b in setting.model.named_buffers()}
    assert before
    setting.contrast.penalty(batch(), LABELS)
    assert all(torch.equal(b, before[name]) for name, b in setting.model.named_buffers())
    assert all(layer.track_running_stats for layer in norm_layers(setting.model).values())
    # A plain pass does change them.
    setting.model.embed(batch())
    assert not all(torch.equal(b, before[name]) for name, b in setting.model.named_buffers())


# --- the client's state -------------------------------------------------------------------------------------


def test_the_first_round_has_no_penalty_and_keeps_a_model_without_its_head() -> None:
    task = Task((1, 8, 8), "digit-cnn", {"width": 0.1})
    client = client_of(task)
    model = task.network(weights_of(task.build(3, Rng(0))), 3)
    contrast = Moon(Moon.Params()).at_client(client, model, Payload())
    assert contrast.penalty(batch(), LABELS) is None
    moved(model, seed=1)
    assert contrast.after_training(1, 0.1) == {}
    kept, trained = client.state.group(PREVIOUS), model.state_dict()
    assert set(kept) == {name for name in trained if name not in ("head.weight", "head.bias")}
    assert all(torch.equal(tensor, trained[name]) for name, tensor in kept.items())
    moved(model, seed=2)
    assert not torch.equal(next(iter(kept.values())), next(iter(trained.values())))


def test_a_client_without_a_training_step_keeps_its_model() -> None:
    setting = Setting(hidden=[8, 6])
    before = dict(setting.client.state.tensors)
    setting.contrast.after_training(0, 0.1)
    assert all(setting.client.state.tensors[name] is tensor for name, tensor in before.items())


def test_a_previous_model_of_another_shape_is_ignored() -> None:
    small, large = (Task((1, 8, 8), "mlp", {"hidden": [width]}) for width in (4, 5))
    own = weights_of(small.build(3, Rng(0)))
    client = client_of(large, Payload.of(previous={name: own[name] for name in own if "head" not in name}))
    contrast = Moon(Moon.Params()).at_client(client, large.network(weights_of(large.build(3, Rng(0))), 3), Payload())
    assert contrast.penalty(batch(), LABELS) is None


@pytest.mark.parametrize("bias", [True, False])
def test_the_head_may_have_any_size(bias: bool) -> None:
    task = Task((1, 8, 8), "mlp", {"hidden": [8, 6]})
    own = weights_of(moved(task.build(2, Rng(0)), seed=1))
    client = client_of(task, Payload.of(previous={name: own[name] for name in own if "head" not in name}))
    model = task.network(weights_of(task.build(4, Rng(0), bias)), 4, bias)
    contrast = Moon(Moon.Params()).at_client(client, model, Payload())
    penalty = contrast.penalty(batch(), LABELS)
    assert penalty is not None
    # The local model is still the received one, and no cosine is larger than that of h with itself.
    assert 0 < penalty.item() < math.log(2)


def test_a_network_with_additional_tensors_is_copied() -> None:
    task = Task((1, 8, 8), "mlp", {"hidden": [8, 6]})

    def extended(seed: int) -> Network:
        model = task.build(3, Rng(seed))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model.neck = nn.Linear(6, 6)
        return model

    model, other = extended(0), extended(7)
    own = {name: tensor for name, tensor in weights_of(other).items() if "head" not in name}
    contrast = Moon(Moon.Params()).at_client(client_of(task, Payload.of(previous=own)), model, Payload())
    received = weights_of(model)
    h_g = model.embed(batch()).detach()
    moved(model, seed=3)
    penalty = contrast.penalty(batch(), LABELS)
    assert penalty is not None
    with torch.no_grad():
        expected = penalty_by_hand(model.embed(batch()), h_g, other.embed(batch()), 1.0, 0.5)
    assert penalty.item() == pytest.approx(expected, rel=1e-5)
    assert "neck.weight" in received


# --- whole runs ---------------------------------------------------------------------------------------------


def failures(folder: Path) -> list[Any]:
    return [e["reason"] for e in read_events(folder / "events.jsonl") if e["event"] == "client-failed"]


def test_with_mu_0_there_is_no_contrast() -> None:
    assert type(Moon(Moon.Params(mu=0)).at_client(None, None, Payload())) is ClientCorrection  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_mu_0_is_plain_fedavg_bit_for_bit(optimizer: str, data: Any, split: Any, tmp_path: Path) -> None:
    method = {"method": {"optimizer": optimizer, "epochs": 2}}
    run_tiny(tmp_path / "none", "fedavg", data, split, method)
    run_tiny(tmp_path / "moon", "fedavg", data, split, {**method, "correction": {"name": "moon", "mu": 0.0}})
    assert model_bytes(tmp_path / "moon") == model_bytes(tmp_path / "none")
    assert not list((tmp_path / "moon" / "clients").glob("*/*.safetensors"))


def test_both_settings_take_effect(data: Any, split: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "none": {"name": "none"},
        "default": {"name": "moon"},
        "more": {"name": "moon", "mu": 5.0},
        "warmer": {"name": "moon", "temperature": 2.0},
    }
    for name, correction in settings.items():
        run_tiny(tmp_path / name, "fedavg", data, split, {"correction": correction})
    assert len({model_bytes(tmp_path / name) for name in settings}) == 4


@pytest.mark.parametrize("model", [{}, {"model": WITH_NORMS}])
def test_only_the_first_round_is_that_of_fedavg(model: Any, data: Any, split: Any, tmp_path: Path) -> None:
    for rounds in (1, 2):
        for name in ("none", "moon"):
            settings = {"correction": {"name": name}, "method": {"rounds": rounds}, **model}
            run_tiny(tmp_path / f"{name}-{rounds}", "fedavg", data, split, settings)
    assert model_bytes(tmp_path / "moon-1") == model_bytes(tmp_path / "none-1")
    assert model_bytes(tmp_path / "moon-2") != model_bytes(tmp_path / "none-2")


@pytest.mark.parametrize("model", [{}, {"model": WITH_NORMS}])
def test_the_model_is_bit_equal_with_workers(model: Any, data: Any, split: Any, tmp_path: Path) -> None:
    for workers in (0, 2):
        run_tiny(tmp_path / str(workers), "fedavg", data, split, {**MOON, **model}, workers=workers)
    assert model_bytes(tmp_path / "0") == model_bytes(tmp_path / "2")
    assert not failures(tmp_path / "0")


def test_a_head_may_grow(tmp_path: Path) -> None:
    data = tiny_dataset(classes=3)
    split = split_by(data, 2, even_shares(data, 2, 3), unlabelled=[2, 6, 10, 14])
    for name in ("none", "moon"):
        run_tiny(tmp_path / name, "tests.sketches:GrowingHead", data, split, {"correction": {"name": name}})
    assert not failures(tmp_path / "moon")
    assert model_bytes(tmp_path / "moon") != model_bytes(tmp_path / "none")


@pytest.mark.parametrize("method", ["fedoss", "fedoss-paper", "fedpd", "fedpd-paper"])
def test_it_works_with_other_methods(method: str, data: Any, split: Any, tmp_path: Path) -> None:
    run_tiny(tmp_path / "none", method, data, split)
    run_tiny(tmp_path / "moon", method, data, split, MOON)
    assert not failures(tmp_path / "moon")
    assert model_bytes(tmp_path / "moon") != model_bytes(tmp_path / "none")


@pytest.mark.parametrize(("key", "value"), [("mu", -0.1), ("temperature", 0.0), ("temperature", "warm")])
def test_an_invalid_setting_is_rejected_by_name(key: str, value: Any, data: Any, split: Any) -> None:
    with pytest.raises(UserError, match=rf"correction\.{key} = "):
        tiny_experiment("fedavg", data, split, {"correction": {"name": "moon", key: value}})
