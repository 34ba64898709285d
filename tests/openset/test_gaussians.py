"""Moments of features are merged exactly, and draws come from where a Gaussian is unlikely."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedwild.openset.gaussians import (
    FLOOR,
    Gaussian,
    Moments,
    any_of,
    by_class,
    from_tensors,
    merge,
    merge_classes,
    moments,
    to_tensors,
    travel_shape,
    unlikelier_than,
    unlikely,
)


def features(n: int, dims: int, seed: int) -> torch.Tensor:
    """Correlated, off-centre, with directions that never vary, as dead neurons are."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(dims, dims, generator=generator, dtype=torch.float64)
    mix[:, : dims // 3] = 0.0
    return torch.randn(n, dims, generator=generator, dtype=torch.float64) @ mix + 7.0


def theorem_1(parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance as the paper prints them, from the clients' own means and covariances."""
    counts = [len(x) for x in parts]
    total = sum(counts)
    mean = sum(n / total * x.mean(0) for n, x in zip(counts, parts, strict=True) if n)
    covariance = -total / (total - 1) * torch.outer(mean, mean)
    for n, x in zip(counts, parts, strict=True):
        if n:
            own = x.mean(0)
            covariance += n / (total - 1) * torch.outer(own, own)
        if n > 1:
            covariance += (n - 1) / (total - 1) * torch.cov(x.T)
    return mean, covariance


@given(
    counts=st.lists(st.integers(0, 12), min_size=1, max_size=7).filter(lambda counts: sum(counts) > 1),
    dims=st.integers(1, 20),
    seed=st.integers(0, 2**16),
)
def test_merged_moments_equal_those_of_all_features_together(counts: list[int], dims: int, seed: int) -> None:
    everything = features(sum(counts), dims, seed)
    parts = list(everything.split(counts))
    merged = merge_classes([{0: moments(x)} for x in parts if len(x)])[0]
    covariance = merged.scatter() / (merged.count - 1)
    scale = everything.abs().max() ** 2
    assert merged.count == len(everything)
    assert torch.allclose(merged.mean, everything.mean(0), rtol=0, atol=1e-6)
    assert torch.allclose(covariance, torch.from_numpy(np.cov(everything.T.numpy()).reshape(dims, dims)), atol=1e-6)
    mean, printed = theorem_1(parts)
    assert torch.allclose(merged.mean, mean, rtol=0, atol=1e-6)
    assert torch.allclose(covariance, printed, rtol=0, atol=float(1e-9 * scale) + 1e-9)


@pytest.mark.parametrize(("count", "dims"), [(1, 6), (2, 6), (4, 6), (5, 6), (40, 6)])
def test_no_matrix_is_kept_while_rows_are_shorter(count: int, dims: int) -> None:
    found = moments(features(count, dims, 1))
    assert found.spread.shape == ((count - 1, dims) if count <= 4 else (dims, dims))
    halves = [moments(x) for x in features(count, dims, 1).tensor_split(2) if len(x)]
    if len(halves) == 2:
        assert merge(*halves).spread.shape == found.spread.shape


@pytest.mark.parametrize("count", [1, 2, 5, 6, 30])
def test_moments_travel_in_float32_without_loss_beyond_it(count: int) -> None:
    found = moments(features(count, 6, 3))
    tensors = to_tensors(found)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert tuple(tensors["spread"].shape) == travel_shape(count, 6)
    back = from_tensors(count, tensors)
    assert torch.allclose(back.mean, found.mean, rtol=1e-6)
    assert torch.allclose(back.scatter(), found.scatter(), rtol=1e-5, atol=1e-3)


def test_what_travels_does_not_tell_the_order_of_features() -> None:
    x = features(5, 12, 4)
    one, other = (to_tensors(moments(order))["spread"] for order in (x, x.flip(0)))
    # Rows of a triangle are determined up to their signs.
    assert torch.allclose(one.abs(), other.abs(), atol=1e-4)
    assert not any(torch.allclose(row, x[i].float(), atol=1e-2) for row in one for i in range(5))


def test_a_class_with_too_few_features_is_left_out() -> None:
    x, y = features(10, 3, 0), torch.tensor([0] * 6 + [2] * 3 + [5])
    assert list(by_class(x, y)) == [0, 2, 5]
    assert list(by_class(x, y, least=3)) == [0, 2]
    assert torch.equal(by_class(x, y)[2].mean, x[6:9].mean(0))


@pytest.mark.parametrize("count", [2, 5, 60])
def test_a_draw_has_the_density_that_its_length_says(count: int) -> None:
    x = features(count, 6, 5)
    gaussian = Gaussian.of(moments(x))
    z = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    covariance = torch.cov(x.T) + FLOOR * torch.eye(6)
    # The root is kept in float32: compare with the density under its own covariance.
    root = torch.stack([gaussian.at(unit.unsqueeze(0))[0] - gaussian.mean for unit in torch.eye(6)], dim=1).double()
    assert torch.allclose(root @ root.T, covariance, rtol=1e-3, atol=1e-4)
    expected = stats.multivariate_normal(gaussian.mean.double().numpy(), covariance.numpy()).logpdf(
        (gaussian.mean.double() + z.double() @ root.T).numpy()
    )
    found = gaussian.log_density(z.double().square().sum(1))
    assert np.allclose(found, expected, rtol=0.02, atol=0.05)
    assert np.array_equal(np.argsort(expected), np.argsort(-z.double().square().sum(1).numpy()))


def test_the_selected_draws_are_those_of_lowest_density() -> None:
    x = features(200, 5, 6)
    gaussian = Gaussian.of(moments(x))
    z = torch.randn(100, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    density = torch.distributions.MultivariateNormal(
        x.mean(0), torch.cov(x.T) + FLOOR * torch.eye(5, dtype=torch.float64)
    ).log_prob(x.mean(0) + z @ torch.linalg.cholesky(torch.cov(x.T) + FLOOR * torch.eye(5, dtype=torch.float64)).T)
    by_length = z.square().sum(1).argsort(descending=True)[:6]
    assert set(by_length.tolist()) == set(density.argsort()[:6].tolist())
    assert torch.allclose(gaussian.log_density(z.square().sum(1)), density, atol=1e-3)


def test_lengths_and_directions_drawn_apart_have_the_distribution_of_the_unlikeliest() -> None:
    """Against ranking whole draws: the lengths by a Kolmogorov-Smirnov test, the directions by their means."""
    rng = np.random.default_rng(0)
    ours = torch.stack([unlikely(4, 20, 3, rng) for _ in range(800)])
    plain = rng.standard_normal((800, 20, 4))
    squared = np.sort((plain**2).sum(2), axis=1)[:, ::-1][:, :3]
    for place in range(3):
        assert stats.ks_2samp(ours[:, place].square().sum(1).numpy(), squared[:, place]).pvalue > 1e-3
    directions = ours.reshape(-1, 4) / ours.reshape(-1, 4).norm(dim=1, keepdim=True)
    assert directions.mean(0).abs().max() < 0.06
    assert torch.allclose(torch.cov(directions.T), torch.eye(4) / 4, atol=0.03)


def test_unselected_draws_are_standard_normal() -> None:
    z = any_of(50, 4000, 3000, np.random.default_rng(0))
    assert z.shape == (3000, 50)
    assert stats.kstest(z.flatten().numpy(), "norm").pvalue > 1e-3


def test_a_density_threshold_keeps_only_draws_below_it() -> None:
    gaussian = Gaussian.of(moments(features(80, 5, 7)))
    middle = float(gaussian.log_density(torch.tensor([5.0])))
    z = unlikelier_than(gaussian, middle, 200, 150, np.random.default_rng(0))
    assert 0 < len(z) < 150
    assert bool((gaussian.log_density(z.double().square().sum(1)) < middle + 1e-4).all())
    assert len(unlikelier_than(gaussian, -1e9, 200, 150, np.random.default_rng(0))) == 0
    assert len(unlikelier_than(gaussian, 1e9, 200, 150, np.random.default_rng(0))) == 150


def test_features_that_do_not_vary_leave_the_floor() -> None:
    same = Moments(12, torch.full((30,), 2.0, dtype=torch.float64), torch.zeros(11, 30, dtype=torch.float64))
    gaussian = Gaussian.of(same)
    z = torch.ones(1, 30)
    assert torch.allclose(gaussian.at(z), torch.full((1, 30), 2.0 + FLOOR**0.5))
    assert torch.isfinite(gaussian.log_density(torch.tensor([3.0]))).all()


@pytest.mark.parametrize("size", [3e38, 1e200])
def test_moments_too_large_for_float32_are_refused(size: float) -> None:
    rows = torch.full((4, 30), size, dtype=torch.float64)
    with pytest.raises(ValueError, match=r".+"):
        Gaussian.of(Moments(5, torch.zeros(30, dtype=torch.float64), rows))


def test_a_matrix_with_negative_eigenvalues_is_refused() -> None:
    with pytest.raises(ValueError, match="negative eigenvalues"):
        Gaussian.of(Moments(50, torch.zeros(3, dtype=torch.float64), -torch.eye(3, dtype=torch.float64)))
