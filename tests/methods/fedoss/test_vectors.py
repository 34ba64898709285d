"""Lengths of activations, and changes measured in these lengths."""

from __future__ import annotations

import torch

from fedwild.methods.fedoss.boundary import MAX_DISPLACEMENT, displacement, lengths, perturb, rescale


def test_a_perturbation_is_measured_in_the_length_of_the_sample() -> None:
    h = torch.tensor([[3.0, 4.0], [0.0, 0.0], [30.0, 40.0]])
    moved = perturb(h, 0.5, torch.Generator().manual_seed(0)) - h
    assert torch.allclose(lengths(moved), torch.tensor([2.5, 0.0, 25.0]))


def test_directions_of_zero_stay_zero() -> None:
    scaled = rescale(torch.tensor([[0.0, 0.0], [0.0, 2.0]]), torch.tensor([5.0, 5.0]))
    assert scaled.tolist() == [[0.0, 0.0], [0.0, 5.0]]


def test_tiny_directions_are_rescaled() -> None:
    assert torch.allclose(rescale(torch.tensor([[3e-30, 4e-30]]), torch.tensor([5.0])), torch.tensor([[3.0, 4.0]]))


def test_a_sample_without_length_is_not_displaced() -> None:
    assert displacement(torch.zeros(1, 4), torch.ones(1, 4)).tolist() == [0.0]


def test_displacement_has_a_maximum() -> None:
    assert displacement(torch.full((1, 4), 1e-20), torch.ones(1, 4)).tolist() == [MAX_DISPLACEMENT]
