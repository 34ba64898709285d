"""The local training loop against the same steps by hand, and the networks that a task reuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedwild.contract.task import Task, weights_of
from fedwild.core.rng import Rng
from fedwild.data import Samples
from fedwild.models import Network, build
from fedwild.training.corrections import ClientCorrection
from fedwild.training.loop import LocalTraining, train
from fedwild.training.objectives import CrossEntropy


def samples(count: int, shape: tuple[int, ...] = (6,)) -> Samples:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(count, *shape, generator=generator)
    return Samples(x, torch.arange(count) % 3, torch.arange(count))


def objective(smoothing: float = 0.0) -> CrossEntropy:
    return CrossEntropy(CrossEntropy.Params(label_smoothing=smoothing))


def small_model() -> Network:
    return Task((6,), "mlp", {"hidden": [5]}).build(3, Rng(1))


def test_sgd_with_momentum_and_decay_equals_the_formula_in_float64() -> None:
    """v <- momentum*v + (g + decay*w), w <- w - lr*v, over the batches in the order of the generator."""
    settings = LocalTraining(epochs=2, batch_size=4, lr=0.1, momentum=0.8, weight_decay=0.01)
    data = samples(10)
    ours = small_model()
    by_hand = small_model().double()
    trained = train(ours, data, settings, objective(), ClientCorrection(), Rng(7))

    order = Rng(7).torch("batches")
    velocity = [torch.zeros_like(p) for p in by_hand.parameters()]
    for _ in range(2):
        for x, y in data.batches(4, order):
            loss = F.cross_entropy(by_hand(x.double()), y)
            gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
            with torch.no_grad():
                for p, v, g in zip(by_hand.parameters(), velocity, gradients, strict=True):
                    v.mul_(0.8).add_(g + 0.01 * p)
                    p.sub_(0.1 * v)
    assert trained.steps == 6
    for p, q in zip(ours.parameters(), by_hand.parameters(), strict=True):
        assert torch.allclose(p.double(), q, atol=1e-6)


def test_the_reported_loss_is_the_mean_per_sample_of_the_last_epoch() -> None:
    model, data = small_model(), samples(10)
    x, y = data.all()
    expected = float(F.cross_entropy(model(x), y).detach())
    settings = LocalTraining(epochs=1, batch_size=4, lr=1e-12, momentum=0.0)
    trained = train(model, data, settings, objective(), ClientCorrection(), Rng(0))
    assert trained.loss == pytest.approx(expected, abs=1e-6)


def test_a_client_without_samples_takes_no_step() -> None:
    model = small_model()
    before = weights_of(model)
    trained = train(model, samples(0), LocalTraining(epochs=3), objective(), ClientCorrection(), Rng(0))
    assert trained == (0, None)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_with_batch_norm_a_batch_of_one_is_skipped() -> None:
    model = build("digit-cnn", (1, 8, 8), 3)
    settings = LocalTraining(epochs=1, batch_size=4)
    assert train(model, samples(5, (1, 8, 8)), settings, objective(), ClientCorrection(), Rng(0)).steps == 1
    assert train(model, samples(1, (1, 8, 8)), settings, objective(), ClientCorrection(), Rng(0)) == (0, None)


@pytest.mark.parametrize(("count", "steps"), [(34, 1), (35, 1), (36, 2), (3, 1), (2, 1)])
def test_with_batch_norm_a_last_batch_of_less_than_an_eighth_is_skipped(count: int, steps: int) -> None:
    settings = LocalTraining(epochs=1, batch_size=32)
    given = samples(count, (1, 8, 8))
    normed, plain = build("digit-cnn", (1, 8, 8), 3, params={"width": 0.05}), build("simple-cnn", (1, 8, 8), 3)
    assert train(normed, given, settings, objective(), ClientCorrection(), Rng(0)).steps == steps
    assert train(plain, given, settings, objective(), ClientCorrection(), Rng(0)).steps == -(-count // 32)


def test_label_smoothing_equals_the_spread_target() -> None:
    model, (x, y) = small_model(), samples(6).all()
    target = F.one_hot(y, 3) * 0.7 + 0.3 / 3
    expected = -(target * model(x).log_softmax(1)).sum(1).mean()
    ours = objective(0.3).loss(model, x, y, torch.Generator())
    assert torch.allclose(ours, expected, atol=1e-6)


def test_penalty_and_before_step_change_the_weights() -> None:
    class Push(ClientCorrection):
        def __init__(self, model: nn.Module) -> None:
            self.model = model

        def penalty(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return 2 * next(self.model.parameters()).sum()

        def before_step(self) -> None:
            for p in self.model.parameters():
                assert p.grad is not None
                p.grad += 1

    plain, pushed = small_model(), small_model()
    settings = LocalTraining(epochs=1, batch_size=10, lr=0.1, momentum=0.0)
    train(plain, samples(10), settings, objective(), ClientCorrection(), Rng(0))
    train(pushed, samples(10), settings, objective(), Push(pushed), Rng(0))
    differences = [(p - q).detach() for p, q in zip(plain.parameters(), pushed.parameters(), strict=True)]
    assert torch.allclose(differences[0], torch.full_like(differences[0], 0.3), atol=1e-6)
    assert torch.allclose(differences[1], torch.full_like(differences[1], 0.1), atol=1e-6)


def test_training_switches_the_model_to_training_mode() -> None:
    model = build("digit-cnn", (1, 8, 8), 3).eval()
    before = model.state_dict()["conv1.norm.running_mean"].clone()
    train(model, samples(8, (1, 8, 8)), LocalTraining(), objective(), ClientCorrection(), Rng(0))
    assert not torch.equal(before, model.state_dict()["conv1.norm.running_mean"])


def test_a_slot_holds_a_clean_copy_of_the_weights() -> None:
    task = Task((6,), "mlp", {"hidden": [5]})
    weights = weights_of(task.build(3, Rng(1)))
    first = task.network(weights, 3)
    train(first, samples(10), LocalTraining(), objective(), ClientCorrection(), Rng(0))
    first.head.weight.requires_grad = False
    second = task.network(weights, 3)
    assert second is first
    assert all(torch.equal(weights[name], tensor) for name, tensor in second.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in second.parameters())
    assert task.network(weights, 3, slot="other") is not second


def test_a_slot_with_a_changed_head_is_rebuilt() -> None:
    task = Task((6,), "mlp", {"hidden": [5]})
    weights = weights_of(task.build(3, Rng(1)))
    network = task.network(weights, 3)
    network.grow_head(5)
    again = task.network(weights, 3)
    assert again.head.out_features == 3
    again.set_head(3)
    assert all(torch.equal(weights[n], t) for n, t in task.network(weights, 3).state_dict().items())


def test_initial_weights_depend_only_on_the_rng() -> None:
    task = Task((6,), "mlp", {"hidden": [5]})
    one = weights_of(task.build(3, Rng(1)))
    torch.manual_seed(99)
    two = weights_of(task.build(3, Rng(1)))
    other = weights_of(task.build(3, Rng(2)))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])
    assert math.isfinite(float(one["head.weight"].sum()))


def test_a_slot_is_in_training_mode_and_survives_replaced_tensors() -> None:
    task = Task((6,), "mlp", {"hidden": [5]})
    weights = weights_of(task.build(3, Rng(1)))
    network = task.network(weights, 3).eval()
    assert task.network(weights, 3).training
    first = next(network.parameters())
    first.data = torch.zeros_like(first)
    again = task.network(weights, 3)
    assert all(torch.equal(weights[name], tensor) for name, tensor in again.state_dict().items())


def test_the_weights_of_a_slot_are_a_copy_of_its_whole_state() -> None:
    task = Task((1, 8, 8), "digit-cnn")
    weights = weights_of(task.build(3, Rng(1)))
    network = task.network(weights, 3)
    train(network, samples(8, (1, 8, 8)), LocalTraining(), objective(), ClientCorrection(), Rng(0))
    copy, expected = task.weights(network), weights_of(network)
    assert copy.keys() == expected.keys()
    assert all(torch.equal(copy[name], expected[name]) for name in expected)
    next(network.parameters()).data.zero_()
    assert not torch.equal(copy["conv1.conv.weight"], network.state_dict()["conv1.conv.weight"])
    network.grow_head(5)
    assert task.weights(network)["head.weight"].shape[0] == 5
