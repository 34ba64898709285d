from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fedwild.data.augment import PAD, augment_batch, padding


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
