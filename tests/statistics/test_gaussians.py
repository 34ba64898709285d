"""Densities and draws of Gaussians against SciPy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from fedwild.statistics.gaussians import FLOOR, Gaussian, draw_any, draw_below_density, draw_least_likely
from fedwild.statistics.moments import Moments, compute_moments
from tests.statistics.features import features


@pytest.mark.parametrize("count", [2, 5, 60])
def test_the_density_of_a_draw_follows_from_its_length(count: int) -> None:
    x = features(count, 6, 5)
    gaussian = Gaussian.of(compute_moments(x))
    z = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    covariance = torch.cov(x.T) + FLOOR * torch.eye(6)
    # The root is kept in float32: compare with the density under its own covariance.
    root = torch.stack(
        [gaussian.transform(unit.unsqueeze(0))[0] - gaussian.mean for unit in torch.eye(6)], dim=1
    ).double()
    assert torch.allclose(root @ root.T, covariance, rtol=1e-3, atol=1e-4)
    expected = stats.multivariate_normal(gaussian.mean.double().numpy(), covariance.numpy()).logpdf(
        (gaussian.mean.double() + z.double() @ root.T).numpy()
    )
    found = gaussian.log_density(z.double().square().sum(1))
    assert np.allclose(found, expected, rtol=0.02, atol=0.05)
    assert np.array_equal(np.argsort(expected), np.argsort(-z.double().square().sum(1).numpy()))


def test_the_longest_draws_have_the_lowest_density() -> None:
    x = features(200, 5, 6)
    gaussian = Gaussian.of(compute_moments(x))
    z = torch.randn(100, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    density = torch.distributions.MultivariateNormal(
        x.mean(0), torch.cov(x.T) + FLOOR * torch.eye(5, dtype=torch.float64)
    ).log_prob(x.mean(0) + z @ torch.linalg.cholesky(torch.cov(x.T) + FLOOR * torch.eye(5, dtype=torch.float64)).T)
    by_length = z.square().sum(1).argsort(descending=True)[:6]
    assert set(by_length.tolist()) == set(density.argsort()[:6].tolist())
    assert torch.allclose(gaussian.log_density(z.square().sum(1)), density, atol=1e-3)


def test_separate_lengths_and_directions_have_the_distribution_of_the_least_likely_draws() -> None:
    """Against ranking whole draws: the lengths by a Kolmogorov-Smirnov test, the directions by their means."""
    rng = np.random.default_rng(0)
    ours = torch.stack([draw_least_likely(4, 20, 3, rng) for _ in range(800)])
    plain = rng.standard_normal((800, 20, 4))
    squared = np.sort((plain**2).sum(2), axis=1)[:, ::-1][:, :3]
    for place in range(3):
        assert stats.ks_2samp(ours[:, place].square().sum(1).numpy(), squared[:, place]).pvalue > 1e-3
    directions = ours.reshape(-1, 4) / ours.reshape(-1, 4).norm(dim=1, keepdim=True)
    assert directions.mean(0).abs().max() < 0.06
    assert torch.allclose(torch.cov(directions.T), torch.eye(4) / 4, atol=0.03)


def test_unselected_draws_are_standard_normal() -> None:
    z = draw_any(50, 4000, 3000, np.random.default_rng(0))
    assert z.shape == (3000, 50)
    assert stats.kstest(z.flatten().numpy(), "norm").pvalue > 1e-3


def test_a_density_threshold_keeps_only_draws_below_it() -> None:
    gaussian = Gaussian.of(compute_moments(features(80, 5, 7)))
    middle = float(gaussian.log_density(torch.tensor([5.0])))
    z = draw_below_density(gaussian, middle, 200, 150, np.random.default_rng(0))
    assert 0 < len(z) < 150
    assert bool((gaussian.log_density(z.double().square().sum(1)) < middle + 1e-4).all())
    assert len(draw_below_density(gaussian, -1e9, 200, 150, np.random.default_rng(0))) == 0
    assert len(draw_below_density(gaussian, 1e9, 200, 150, np.random.default_rng(0))) == 150


def test_features_that_do_not_vary_have_the_variance_of_the_floor() -> None:
    same = Moments(12, torch.full((30,), 2.0, dtype=torch.float64), torch.zeros(11, 30, dtype=torch.float64))
    gaussian = Gaussian.of(same)
    z = torch.ones(1, 30)
    assert torch.allclose(gaussian.transform(z), torch.full((1, 30), 2.0 + FLOOR**0.5))
    assert torch.isfinite(gaussian.log_density(torch.tensor([3.0]))).all()


@pytest.mark.parametrize("size", [3e38, 1e200])
def test_moments_too_large_for_float32_are_rejected(size: float) -> None:
    rows = torch.full((4, 30), size, dtype=torch.float64)
    with pytest.raises(ValueError, match=r".+"):
        Gaussian.of(Moments(5, torch.zeros(30, dtype=torch.float64), rows))


def test_a_matrix_with_negative_eigenvalues_is_rejected() -> None:
    with pytest.raises(ValueError, match="negative eigenvalues"):
        Gaussian.of(Moments(50, torch.zeros(3, dtype=torch.float64), -torch.eye(3, dtype=torch.float64)))
