"""Temperature scaling: sums over clients give the temperature of all samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from fedwild.openset.temperature import MAX_LOSS, TEMPERATURES, best_temperature, loss_sums


def answers(n: int, sharpness: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits (n, 6) that are `sharpness` times too large for labels drawn from their softmax."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, 6, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return logits * sharpness, labels


@pytest.mark.parametrize("sharpness", [0.4, 1.0, 3.0])
def test_the_temperature_minimises_the_loss(sharpness: float) -> None:
    logits, labels = answers(2000, sharpness)
    z, rows = logits.double().numpy(), np.arange(2000)

    def loss(log_t: float) -> float:
        scaled = z / np.exp(log_t)
        return float((np.log(np.exp(scaled).sum(1)) - scaled[rows, labels.numpy()]).sum())

    exact = np.exp(minimize_scalar(loss, bounds=(-2, 3), method="bounded").x)
    # A parabola through three temperatures, each a quarter of an octave from the next.
    assert best_temperature(loss_sums(logits, labels)) == pytest.approx(exact, rel=0.02)
    assert exact == pytest.approx(sharpness, rel=0.1)


def test_sums_over_clients_are_those_of_all_samples() -> None:
    logits, labels = answers(300, 2.0)
    parts = [loss_sums(logits[rows], labels[rows]) for rows in torch.arange(300).split([1, 0, 200, 99])]
    assert np.allclose(np.sum(parts, axis=0), loss_sums(logits, labels), rtol=1e-12)


def test_without_samples_the_temperature_is_one() -> None:
    sums = loss_sums(torch.empty(0, 0), torch.empty(0).long())
    assert sums.shape == TEMPERATURES.shape and not sums.any()
    assert best_temperature(sums) == 1.0


def test_a_predictor_that_is_always_right_gets_the_lowest_temperature_and_one_that_is_wrong_the_highest() -> None:
    logits = torch.eye(3)
    assert best_temperature(loss_sums(logits, torch.arange(3))) == TEMPERATURES[0]
    assert best_temperature(loss_sums(logits, torch.tensor([1, 2, 0]))) == TEMPERATURES[-1]


def test_infinite_logits_cost_a_bounded_loss() -> None:
    logits = torch.tensor([[0.0, -torch.inf], [torch.nan, 0.0]])
    assert loss_sums(logits, torch.tensor([1, 0])).tolist() == [2 * MAX_LOSS] * len(TEMPERATURES)
