"""Inversion moves each sample along the gradient of its own loss and does not change the network."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedwild.contract.task import weights_of
from fedwild.methods.fedoss.boundary import displacement, invert, lengths
from fedwild.methods.fedoss.settings import PushSettings
from fedwild.models import Network, build


def network(name: str = "mlp", **params: Any) -> Network:
    torch.manual_seed(0)
    return build(name, (1, 8, 8), 4, params=params or {"hidden": [10, 6]})


def pushed(model: Network, h: torch.Tensor, y: torch.Tensor, cut: str = "fc1", **changes: Any) -> torch.Tensor:
    settings: dict[str, Any] = {"steps": 1, "step_size": 0.5, "step_unit": "gradient", "away": "class"}
    return invert(model, h, y, cut, PushSettings(**{**settings, **changes}))


H, Y = torch.rand(5, 10, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1])


def test_one_step_is_the_gradient_of_the_cross_entropy_over_all_outputs() -> None:
    """Against the derivative of logsumexp(z) - z_y through the layers, written out."""
    model = network().double()
    h = H.double()
    second, head = model.get_submodule("fc2.fc"), model.head
    assert isinstance(second, torch.nn.Linear)
    before = h @ second.weight.T + second.bias
    z = before.relu() @ head.weight.T + head.bias
    by_logit = z.softmax(1) - F.one_hot(Y, 4)
    gradient = ((by_logit @ head.weight) * (before > 0)) @ second.weight
    assert torch.allclose(pushed(model, h, Y), h + 0.5 * gradient, atol=1e-12)


def test_away_from_all_known_increases_the_free_energy() -> None:
    model = network().double()
    h = H.double().requires_grad_(True)
    energy = -model.after(h, "fc1")[:, :3].logsumexp(1).sum()
    (gradient,) = torch.autograd.grad(energy, h)
    assert torch.allclose(pushed(model, h.detach(), Y, away="known"), h + 0.5 * gradient, atol=1e-12)


def test_the_unknown_output_does_not_count_away_from_all_known() -> None:
    model = network()
    before = pushed(model, H, Y, away="known")
    with torch.no_grad():
        model.head.bias[3] += 100.0
    assert torch.equal(pushed(model, H, Y, away="known"), before)


def test_the_step_of_a_sample_does_not_depend_on_the_others() -> None:
    model = network("digit-cnn", width=0.05)
    h = model.upto(torch.rand(5, 1, 8, 8), "conv3").detach()
    together = pushed(model, h, Y, "conv3", steps=3)
    alone = torch.cat([pushed(model, h[i : i + 1], Y[i : i + 1], "conv3", steps=3) for i in range(5)])
    assert torch.allclose(together, alone, atol=1e-6)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_more_steps_increase_the_loss_further(steps: int) -> None:
    model = network()
    losses = [F.cross_entropy(model.after(pushed(model, H, Y, steps=count), "fc1"), Y) for count in (steps, steps + 1)]
    assert losses[1] > losses[0]


def test_without_steps_nothing_moves() -> None:
    assert torch.equal(pushed(network(), H, Y, steps=0), H)


@pytest.mark.parametrize("away", ["class", "known"])
def test_a_step_in_lengths_has_its_length_even_for_certain_samples(away: str) -> None:
    model = network()
    with torch.no_grad():
        model.head.weight *= 1000
    moved = pushed(model, H, Y, step_unit="length", step_size=0.7, away=away)
    assert torch.allclose(displacement(H, moved), torch.full((5,), 0.7), atol=1e-4)
    assert torch.allclose(lengths(moved - H), 0.7 * lengths(H), atol=1e-4)


def test_the_network_does_not_change() -> None:
    model = network("digit-cnn", width=0.05).train()
    h = model.upto(torch.rand(5, 1, 8, 8), "conv3").detach()
    before = weights_of(model)
    pushed(model, h, Y, "conv3", steps=2)
    after = weights_of(model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(module.training for module in model.modules())
