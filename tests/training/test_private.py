"""Sample-level privacy: per-sample gradients against a loop, clipping, Poisson batches and the variance of noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedwild.contract.task import Task, weights_of
from fedwild.core.rng import Rng
from fedwild.data import Samples
from fedwild.models import Network, build
from fedwild.models.kernels import plain
from fedwild.training import private
from fedwild.training.corrections import ClientCorrection
from fedwild.training.loop import LocalTraining, train
from fedwild.training.objectives import CrossEntropy
from fedwild.training.private import PrivateDescent, clipped_sum, sampling_rate, steps_per_epoch

CE = CrossEntropy(CrossEntropy.Params())


def samples(count: int) -> Samples:
    x = torch.rand(count, 6, generator=torch.Generator().manual_seed(3))
    return Samples(x, torch.arange(count) % 3, torch.arange(count))


def small_model() -> Network:
    return Task((6,), "mlp", {"hidden": [5]}).build(3, Rng(1))


def loop(model: Network, x: Tensor, y: Tensor, clip: float) -> dict[str, Tensor]:
    """The clipped sum, one sample after the other."""
    sums = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for one, label in zip(x, y, strict=True):
        model.zero_grad()
        with plain():
            CE.loss(model, one[None], label[None], torch.Generator()).backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
        for name, g in gradients.items():
            sums[name] += g * min(1.0, clip / norm)
    return sums


@pytest.mark.parametrize(("name", "shape"), [("mlp", (6,)), ("simple-cnn", (1, 8, 8)), ("vgg-9", (1, 8, 8))])
@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_clipped_sums_equal_a_loop_over_samples(name: str, shape: tuple[int, ...], clip: float) -> None:
    params = {"width": 0.1} if name == "vgg-9" else {}
    with Rng(1).seeded("initialisation"):
        model = build(name, shape, 3, params=params)
    x = torch.rand(7, *shape, generator=torch.Generator().manual_seed(0))
    y = torch.arange(7) % 3
    ours = clipped_sum(model, CE, x, y, clip, torch.Generator())
    for parameter, expected in loop(model, x, y, clip).items():
        assert torch.allclose(ours[parameter], expected, rtol=1e-4, atol=1e-6), parameter


def test_parts_of_a_batch_give_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = small_model(), samples(10).all()
    whole = clipped_sum(model, CE, x, y, 0.3, torch.Generator())
    monkeypatch.setattr(private, "MAX_GRADIENT_NUMBERS", 3 * sum(p.numel() for p in model.parameters()))
    parts = clipped_sum(model, CE, x, y, 0.3, torch.Generator())
    for name in whole:
        assert torch.allclose(whole[name], parts[name], atol=1e-6)


def test_a_frozen_parameter_gets_no_gradient() -> None:
    model, (x, y) = small_model(), samples(4).all()
    model.head.bias.requires_grad = False
    assert "head.bias" not in clipped_sum(model, CE, x, y, 0.3, torch.Generator())
    PrivateDescent(0.3, 1.0).gradients(model, CE, ClientCorrection(), x, y, torch.Generator())
    assert model.head.bias.grad is None


def test_one_sample_more_moves_the_sum_by_at_most_clip() -> None:
    model, (x, y) = small_model(), samples(9).all()
    with_all = clipped_sum(model, CE, x, y, 0.2, torch.Generator())
    without = clipped_sum(model, CE, x[:-1], y[:-1], 0.2, torch.Generator())
    moved = math.sqrt(sum(float((with_all[name] - without[name]).double().square().sum()) for name in with_all))
    # The gradients of a new network are longer than 0.2, so that the bound is reached.
    assert moved == pytest.approx(0.2, rel=1e-4)


def test_batches_are_poisson_samples() -> None:
    """1,000 samples at rate 0.1, 50 batches: sizes vary like a binomial, and every sample has the same chance."""
    data, settings = samples(1000), LocalTraining(batch_size=100)
    drawn: list[Tensor] = []
    generator = torch.Generator().manual_seed(5)
    for _ in range(5):
        batches = list(PrivateDescent(1.0, 1.0).batches(small_model(), data, settings, generator))
        assert len(batches) == steps_per_epoch(100, 1000) == 10
        drawn += [x for x, _ in batches]
    sizes = torch.tensor([float(len(x)) for x in drawn])
    assert float(sizes.mean()) == pytest.approx(100, abs=6 * math.sqrt(90 / 50))
    assert 90 / 2.5 < float(sizes.var()) < 90 * 2.5
    assert len(torch.unique(drawn[0], dim=0)) == len(drawn[0])


@pytest.mark.parametrize(("size", "count", "rate", "steps"), [(10, 95, 10 / 95, 10), (64, 64, 1.0, 1), (64, 5, 1.0, 1)])
def test_rate_and_steps_of_an_epoch(size: int, count: int, rate: float, steps: int) -> None:
    assert sampling_rate(size, count) == rate
    assert steps_per_epoch(size, count) == steps


def test_gradients_without_noise_are_the_clipped_sum_over_the_expected_size() -> None:
    model, data = small_model(), samples(30)
    descent = PrivateDescent(0.5, 0.0)
    batches = descent.batches(model, data, LocalTraining(batch_size=12), torch.Generator().manual_seed(0))
    x, y = next(batches)
    assert len(y) != 12
    assert descent.gradients(model, CE, ClientCorrection(), x, y, torch.Generator()) is None
    expected = loop(small_model(), x, y, 0.5)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, expected[name] / 12, atol=1e-6)


def test_noise_has_the_stated_variance_also_for_an_empty_batch() -> None:
    """About 100,000 numbers: the standard deviation is within 2 % (nine standard errors) of noise * clip / (q n)."""
    model = Task((300,), "mlp", {"hidden": [300]}).build(3, Rng(1))
    data = Samples(torch.rand(40, 300), torch.arange(40) % 3, torch.arange(40))
    descent = PrivateDescent(0.5, 2.0)
    next(descent.batches(model, data, LocalTraining(batch_size=10), torch.Generator()))
    x, y = data.take([]).all()
    descent.gradients(model, CE, ClientCorrection(), x, y, torch.Generator().manual_seed(1))
    numbers = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert len(numbers) > 90_000
    assert float(numbers.std()) == pytest.approx(2.0 * 0.5 / 10, rel=0.02)


def test_training_reports_no_loss_and_takes_a_step_for_every_batch() -> None:
    settings = LocalTraining(epochs=2, batch_size=8, lr=0.1)
    trained = train(small_model(), samples(30), settings, CE, ClientCorrection(), Rng(2), PrivateDescent(1.0, 1.0))
    assert trained.steps == 2 * 4
    assert trained.loss is None
    assert (
        train(small_model(), samples(0), settings, CE, ClientCorrection(), Rng(2), PrivateDescent(1.0, 1.0)).steps == 0
    )


def test_clip_and_noise_take_effect_and_the_same_stream_gives_the_same_bits() -> None:
    def result(clip: float, noise: float, seed: int = 2) -> Tensor:
        model = small_model()
        settings = LocalTraining(epochs=1, batch_size=8, lr=0.1)
        train(model, samples(30), settings, CE, ClientCorrection(), Rng(seed), PrivateDescent(clip, noise))
        return torch.cat([t.flatten() for t in weights_of(model).values()])

    assert torch.equal(result(0.1, 1.0), result(0.1, 1.0))
    for other in (result(0.2, 1.0), result(0.1, 2.0), result(0.1, 1.0, seed=3)):
        assert not torch.equal(result(0.1, 1.0), other)
