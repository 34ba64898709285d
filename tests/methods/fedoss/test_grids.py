"""Activations are averaged over space only as far as necessary, and spread over it again."""

from __future__ import annotations

import pytest
import torch

from fedwild.methods.fedoss.open_space import Grid


@pytest.mark.parametrize(
    ("shape", "limit", "sides"),
    [
        ((64, 7, 7), 4000, (7, 7)),
        ((64, 7, 7), 64 * 25, (5, 5)),
        ((256, 7, 7), 2048, (2, 2)),
        ((256, 7, 7), 256, (1, 1)),
        ((300, 7, 7), 256, (1, 1)),
        ((8, 2, 5, 5), 8 * 2 * 9, (2, 3, 3)),
        ((120,), 50, ()),
    ],
)
def test_the_grid_is_the_finest_that_fits(shape: tuple[int, ...], limit: int, sides: tuple[int, ...]) -> None:
    assert Grid.within(shape, limit).sides == sides


def test_activations_that_fit_are_restored_bit_by_bit() -> None:
    h = torch.randn(4, 3, 5, 5)
    grid = Grid.within((3, 5, 5), 75)
    assert grid.dims == 75
    assert torch.equal(grid.to_activations(grid.to_vectors(h)), h)


@pytest.mark.parametrize("shape", [(3, 6, 6), (2, 4, 4, 4)])
def test_a_cell_of_the_grid_has_the_mean_of_what_it_covers(shape: tuple[int, ...]) -> None:
    h = torch.randn(2, *shape)
    grid = Grid.within(shape, shape[0] * 2 ** (len(shape) - 1))
    half = shape[1] // 2
    corner = tuple([slice(None), slice(None)] + [slice(0, half)] * (len(shape) - 1))
    means = h[corner].flatten(2).mean(2)
    spread = grid.to_activations(grid.to_vectors(h))
    assert spread.shape == h.shape
    assert torch.allclose(
        spread[corner], means.view(2, shape[0], *[1] * (len(shape) - 1)).expand_as(h[corner]), atol=1e-6
    )


def test_feature_vectors_do_not_change() -> None:
    h = torch.randn(4, 120)
    grid = Grid.within((120,), 50)
    assert torch.equal(grid.to_vectors(h), h)
    assert torch.equal(grid.to_activations(h), h)
