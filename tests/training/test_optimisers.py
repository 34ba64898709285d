"""The optimisers take torch's steps, bit for bit, without importing torch's compiler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedwild.training.optimisers import SGD, Adam, Optimiser

STEPS = 7


def parameters() -> list[Tensor]:
    draws = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draws).requires_grad_() for shape in ((5, 3), (4,), (2, 2))]


def after_steps(make: Callable[[list[Tensor]], Optimiser]) -> list[Tensor]:
    """Return parameters after steps with fixed gradients; the last parameter never has one."""
    weights, draws = parameters(), torch.Generator().manual_seed(1)
    optimiser = make(weights)
    for _ in range(STEPS):
        for weight in weights[:-1]:
            weight.grad = torch.randn(weight.shape, generator=draws)
        optimiser.step()
    return weights


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_equals_torchs(momentum: float, weight_decay: float) -> None:
    ours = after_steps(lambda weights: SGD(weights, 0.05, momentum, weight_decay))
    theirs = after_steps(
        lambda weights: torch.optim.SGD(weights, 0.05, momentum=momentum, weight_decay=weight_decay, fused=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_sgd_equals_the_formula() -> None:
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimiser, velocity, expected = SGD([weight], 0.1, 0.5, 0.2), torch.zeros(2), weight.detach().clone()
    for gradient in (torch.tensor([1.0, 3.0]), torch.tensor([-2.0, 0.5])):
        weight.grad = gradient.double()
        optimiser.step()
        velocity = 0.5 * velocity + gradient.double() + 0.2 * expected
        expected = expected - 0.1 * velocity
    assert torch.allclose(weight.detach(), expected, atol=1e-12)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_equals_torchs(weight_decay: float) -> None:
    ours = after_steps(lambda weights: Adam(weights, 0.05, (0.8, 0.999), weight_decay))
    theirs = after_steps(
        lambda weights: torch.optim.Adam(weights, 0.05, betas=(0.8, 0.999), weight_decay=weight_decay, fused=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_parameter_without_a_gradient_does_not_change() -> None:
    for make in (lambda w: SGD(w, 0.1, 0.9, 0.1), lambda w: Adam(w, 0.1, (0.9, 0.999), 0.1)):
        assert torch.equal(after_steps(make)[-1], parameters()[-1])


def test_a_run_does_not_import_torchs_compiler(tmp_path: Path) -> None:
    job = (
        "import sys\nfrom fedwild import api\n"
        "api.run(rounds=1, out=sys.argv[1], settings={'engine': {'workers': 0}, 'method': {'epochs': 1}})\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", job, str(tmp_path / "run")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[-1] == "False"


def test_a_late_first_gradient_starts_with_zero_velocity() -> None:
    first, late = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    optimiser = SGD([first, late], 0.1, 0.9, 0.0)
    first.grad = torch.ones(2)
    optimiser.step()
    late.grad = torch.ones(2)
    optimiser.step()
    assert torch.allclose(late, torch.full((2,), 0.9))
    assert torch.allclose(first, torch.full((2,), 1 - 0.1 - 0.19))
