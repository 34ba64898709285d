"""Merged moments equal those of all features together, and sending them reveals no order."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwild.statistics.moments import (
    Moments,
    compute_moments,
    merge_by_class,
    merge_moments,
    moments_by_class,
    spread_shape,
)
from tests.statistics.features import features


def theorem_1(parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance as the paper prints them, from the clients' own means and covariances."""
    counts = [len(x) for x in parts]
    total = sum(counts)
    mean = torch.stack([n / total * x.mean(0) for n, x in zip(counts, parts, strict=True) if n]).sum(0)
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
    merged = merge_by_class([{0: compute_moments(x)} for x in parts if len(x)])[0]
    covariance = merged.scatter() / (merged.count - 1)
    scale = everything.abs().max() ** 2
    assert merged.count == len(everything)
    assert torch.allclose(merged.mean, everything.mean(0), rtol=0, atol=1e-6)
    assert torch.allclose(covariance, torch.from_numpy(np.cov(everything.T.numpy()).reshape(dims, dims)), atol=1e-6)
    mean, printed = theorem_1(parts)
    assert torch.allclose(merged.mean, mean, rtol=0, atol=1e-6)
    assert torch.allclose(covariance, printed, rtol=0, atol=float(1e-9 * scale) + 1e-9)


@pytest.mark.parametrize(("count", "dims"), [(1, 6), (2, 6), (4, 6), (5, 6), (40, 6)])
def test_rows_are_stored_while_they_are_smaller_than_a_matrix(count: int, dims: int) -> None:
    found = compute_moments(features(count, dims, 1))
    assert found.spread.shape == ((count - 1, dims) if count <= 4 else (dims, dims))
    halves = [compute_moments(x) for x in features(count, dims, 1).tensor_split(2) if len(x)]
    if len(halves) == 2:
        assert merge_moments(*halves).spread.shape == found.spread.shape


@pytest.mark.parametrize("count", [1, 2, 5, 6, 30])
def test_moments_are_sent_in_float32_without_further_loss(count: int) -> None:
    found = compute_moments(features(count, 6, 3))
    tensors = found.to_tensors()
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    assert tuple(tensors["spread"].shape) == spread_shape(count, 6)
    back = Moments.from_tensors(count, tensors)
    assert torch.allclose(back.mean, found.mean, rtol=1e-6)
    assert torch.allclose(back.scatter(), found.scatter(), rtol=1e-5, atol=1e-3)


def test_sent_moments_do_not_reveal_the_order_of_features() -> None:
    x = features(5, 12, 4)
    one, other = (compute_moments(order).to_tensors()["spread"] for order in (x, x.flip(0)))
    # Rows of a triangle are determined up to their signs.
    assert torch.allclose(one.abs(), other.abs(), atol=1e-4)
    assert not any(torch.allclose(row, x[i].float(), atol=1e-2) for row in one for i in range(5))


def test_every_class_has_moments_of_its_features() -> None:
    x, y = features(10, 3, 0), torch.tensor([0] * 6 + [2] * 3 + [5])
    assert {k: moments.count for k, moments in moments_by_class(x, y).items()} == {0: 6, 2: 3, 5: 1}
    assert torch.equal(moments_by_class(x, y)[2].mean, x[6:9].mean(0))
