from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch.nn import functional

from fedwild.data.augment import PAD, augment_batch, padding, rotate


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_crop_is_a_window_of_the_reflect_padded_image() -> None:
    x = torch.rand(40, 3, 8, 9)
    padded = functional.pad(x, (PAD,) * 4, mode="reflect")
    for image, wide in zip(augment_batch(x, ["crop"], generator()), padded, strict=True):
        windows = [wide[:, i : i + 8, j : j + 9] for i in range(9) for j in range(9)]
        assert any(torch.equal(image, window) for window in windows)


@pytest.mark.parametrize(("side", "expected"), [(8, 4), (28, 4), (32, 4), (64, 8), (224, 28)])
def test_crops_move_large_images_in_proportion(side: int, expected: int) -> None:
    x = torch.arange(side, dtype=torch.float32).expand(400, 1, side, side)
    moved = augment_batch(x, ["crop"], generator())[:, 0, side // 2, side // 2] - side // 2
    assert padding(x) == expected
    assert int(moved.abs().max()) == expected


def test_flip_mirrors_only_some_images() -> None:
    x = torch.arange(64 * 12, dtype=torch.float32).view(64, 1, 3, 4)
    flipped = augment_batch(x, ["flip"], generator())
    mirrored = (flipped == x.flip(-1)).flatten(1).all(1)
    unchanged = (flipped == x).flatten(1).all(1)
    assert torch.equal(mirrored, ~unchanged)
    assert 10 < int(mirrored.sum()) < 54


def test_channels_and_depth_move_together() -> None:
    plane = torch.rand(5, 1, 1, 8, 8)
    out = augment_batch(plane.expand(5, 2, 3, 8, 8), ["crop", "flip"], generator())
    assert torch.equal(out, out[:, :1, :1].expand_as(out))


@pytest.mark.parametrize("kinds", [["crop"], ["flip"], ["crop", "flip"]])
def test_same_generator_state_gives_the_same_batch(kinds: list[str]) -> None:
    x = torch.randint(0, 256, (16, 1, 8, 8), dtype=torch.uint8)
    first, again, other = (augment_batch(x, kinds, generator(seed)) for seed in (3, 3, 4))
    assert first.dtype == torch.uint8
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("degrees", [-15.0, 3.0, 11.0])
def test_a_rotation_agrees_with_scipy(degrees: float) -> None:
    x = torch.rand(1, 2, 11, 14, generator=generator())
    found = rotate(x, torch.tensor([math.radians(degrees)], dtype=torch.float64))
    for plane, image in zip(found[0], x[0], strict=True):
        expected = ndimage.rotate(image.numpy(), degrees, reshape=False, order=0, mode="grid-constant", cval=0.0)
        # Positions half-way between two pixels may be rounded either way.
        assert float(np.mean(plane.numpy() == expected)) > 0.97


def test_rotations_differ_by_image_stay_within_15_degrees_and_keep_the_type() -> None:
    x = torch.zeros(200, 1, 1, 101, dtype=torch.uint8).expand(200, 1, 101, 101).clone()
    x[:, 0, 50, 100] = 255
    turned = augment_batch(x, ["rotate"], generator())
    assert turned.dtype == torch.uint8
    heights = [int(image[0].amax(1).argmax()) - 50 for image in turned if image.any()]
    assert len(heights) > 100
    assert max(map(abs, heights)) <= math.ceil(50 * math.sin(math.radians(15)))
    assert min(heights) < -8 and max(heights) > 8


def test_rotation_does_not_change_the_draws_of_crops_and_flips() -> None:
    x = torch.rand(6, 1, 8, 8)
    plain, turning = generator(), generator()
    before = augment_batch(x, ["crop", "flip"], plain)
    angles = (2 * torch.rand(6, generator=plain, dtype=torch.float64) - 1) * math.radians(15)
    assert torch.equal(augment_batch(x, ["crop", "flip", "rotate"], turning), rotate(before, angles))
