from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fedwild.core.errors import UserError
from fedwild.data.images import convert, grey, resize, to_stored


@pytest.mark.parametrize(
    ("shape", "stored"),
    [
        ((4, 5, 6), (4, 1, 5, 6)),
        ((4, 5, 6, 3), (4, 3, 5, 6)),
        ((4, 5, 6, 1), (4, 1, 5, 6)),
        ((4, 3, 5, 6), (4, 3, 5, 6)),
        ((4, 7, 7, 7), (4, 1, 7, 7, 7)),
        ((4, 7, 6, 5, 3), (4, 3, 7, 6, 5)),
        ((4, 1, 7, 6, 5), (4, 1, 7, 6, 5)),
        ((4, 9), (4, 9)),
    ],
)
def test_all_usual_layouts_are_converted(shape: tuple[int, ...], stored: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    tensor = to_stored(array, "x")
    assert tuple(tensor.shape) == stored
    assert tensor.is_contiguous()
    assert tensor.sum() == array.sum(dtype=np.int64)


def test_only_floats_that_are_pixel_values_become_uint8() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 4)).astype(np.uint8)
    for floats in (pixels / 255, (pixels / 255).astype(np.float32), pixels.astype(np.float64), pixels.astype(np.int64)):
        stored = to_stored(floats, "x")
        assert stored.dtype == torch.uint8
        assert np.array_equal(stored[:, 0].numpy(), pixels)
    odd = to_stored(np.random.default_rng(0).random((5, 4, 4)), "x")
    assert odd.dtype == torch.float32


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.full((2, 4, 4), np.nan), "x has NaN or infinite values .first in sample 0"),
        (np.full((2, 4), np.inf), "NaN or infinite"),
        (np.full((2, 4, 4), -0.5), "pixel values from -0.5"),
        (np.full((2, 4, 4), 300), "must be in 0..255"),
        (np.full((2, 4, 4), "a"), "has dtype <U1"),
        (np.zeros(5), "has shape"),
        (np.zeros((2, 5, 6, 4), dtype=np.uint8), "1 or 3 channels"),
        (np.zeros((2, 0, 6), dtype=np.uint8), "has shape"),
    ],
)
def test_unusable_arrays_are_rejected(array: np.ndarray, message: str) -> None:
    with pytest.raises(UserError, match=message):
        to_stored(array, "x")


def test_resize_and_grey_agree_with_pillow() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (20, 24, 3)).astype(np.uint8)
    x = torch.from_numpy(pixels.transpose(2, 0, 1).copy())[None]
    picture = Image.fromarray(pixels)
    for side in (8, 20, 40):
        wanted = np.asarray(picture.resize((side, side), Image.Resampling.BILINEAR)).astype(int)
        got = resize(x, (side, side))[0].permute(1, 2, 0).numpy().astype(int)
        assert np.abs(wanted - got).max() <= 1
    assert np.abs(np.asarray(picture.convert("L")).astype(int) - grey(x)[0, 0].numpy().astype(int)).max() <= 1


def test_convert_changes_channels_size_and_volumes() -> None:
    one = torch.randint(0, 256, (3, 1, 8, 8), dtype=torch.uint8)
    three = convert(one, None, 3)
    assert torch.equal(three, one.expand(3, 3, 8, 8))
    assert convert(three, 16, 1).shape == (3, 1, 16, 16)
    assert convert(torch.zeros(2, 1, 6, 6, 6), 4, None).shape == (2, 1, 4, 4, 4)
    assert convert(one, 8, 1) is one
    with pytest.raises(UserError, match="the samples are vectors"):
        convert(torch.zeros(2, 5), 8, None)
