"""Data destruction: each operation against torch or brute force, its random choices, and weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedwild.openset.destruction import (
    AUTHORS,
    OPERATIONS,
    UNIFORM,
    Choice,
    Destruction,
    box,
    fitting_box,
    gaussian_blur,
    resized_crop,
)

SHAPES = [
    (5, 1, 8, 8),
    (5, 1, 28, 28),
    (5, 3, 32, 32),
    (5, 2, 9, 13),
    (5, 1, 13, 9),
    (5, 1, 4, 4),
    (1, 1, 28, 28),
    (0, 3, 8, 8),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=generator(seed), dtype=dtype) + 0.01


def enlarged(image: Tensor, top: int, left: int, h: int, w: int) -> Tensor:
    part = image[None, :, top : top + h, left : left + w]
    return functional.interpolate(part, size=image.shape[-2:], mode="bilinear", align_corners=False)[0]


@pytest.mark.parametrize("shape", [(2, 8, 8), (1, 9, 13), (3, 28, 28)])
def test_resized_crop_is_the_bilinear_interpolation_of_each_samples_box(shape: tuple[int, int, int]) -> None:
    height, width = shape[-2:]
    rng = np.random.default_rng(0)
    h, w = rng.integers(1, height + 1, 30), rng.integers(1, width + 1, 30)
    top, left = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
    x = images(30, *shape)
    expected = [enlarged(image, *map(int, b)) for image, b in zip(x, zip(top, left, h, w, strict=True), strict=True)]
    torch.testing.assert_close(resized_crop(x, top, left, h, w), torch.stack(expected), atol=2e-6, rtol=0)


def test_crop_enlarges_a_box_of_a_tenth_to_a_third_of_the_image() -> None:
    image = images(1, 10, 10)
    boxes = [(i, j, h, w) for h in range(2, 8) for w in range(2, 8) for i in range(11 - h) for j in range(11 - w)]
    table = torch.stack([enlarged(image, *b) for b in boxes]).flatten(1)
    out = OPERATIONS["crop"](image.expand(60, 1, 10, 10), generator()).flatten(1)
    same = (out.unsqueeze(1) - table).abs().amax(2) < 1e-5
    assert same.sum(1).eq(1).all()
    found = [boxes[k] for k in same.int().argmax(1).tolist()]
    for _, _, h, w in found:
        assert (h - 0.5) * (w - 0.5) < 33
        assert (h + 0.5) * (w + 0.5) > 10
        assert (h - 0.5) / (w + 0.5) < 4 / 3
        assert (h + 0.5) / (w - 0.5) > 3 / 4
    assert len({key[:2] for key in found}) > 20


def gaussian(length: int, sigma: float) -> Tensor:
    weight = torch.tensor([math.exp(-0.5 * ((i - length // 2) / sigma) ** 2) for i in range(length)])
    return weight / weight.sum()


def test_gaussian_blur_is_a_reflect_padded_convolution_with_each_samples_kernel() -> None:
    x = images(20, 3, 9, 11)
    rng = np.random.default_rng(0)
    vertical, horizontal, sigma = rng.integers(0, 5, 20), rng.integers(0, 5, 20), rng.uniform(0.5, 100, 20)
    expected = []
    for image, v, h, s in zip(x, vertical.tolist(), horizontal.tolist(), sigma.tolist(), strict=True):
        kernel = torch.outer(gaussian(2 * v + 1, s), gaussian(2 * h + 1, s))
        padded = functional.pad(image.unsqueeze(1), (h, h, v, v), mode="reflect")
        expected.append(functional.conv2d(padded, kernel[None, None]).squeeze(1))
    torch.testing.assert_close(gaussian_blur(x, vertical, horizontal, sigma), torch.stack(expected), atol=2e-6, rtol=0)


def test_blur_draws_the_kernels_of_the_paper_in_both_orientations() -> None:
    x = torch.zeros(300, 1, 21, 21, dtype=torch.float64)
    x[:, :, 10, 10] = 1  # a single point shows the kernel
    lengths = []
    for kernel in OPERATIONS["blur"](x, generator()).squeeze(1):
        rows, columns = kernel[:, 10] / kernel[10, 10], kernel[10] / kernel[10, 10]
        lengths.append((int((rows > 0).sum()), int((columns > 0).sum())))
        assert kernel.sum() == pytest.approx(1)
        sigma = [(-0.5 / math.log(line[11])) ** 0.5 for line in (rows, columns) if line[11] > 0]
        assert all(10 <= s <= 100 for s in sigma)
        assert sigma[0] == pytest.approx(sigma[-1])
    upright = {(long, short) for long in (3, 5, 7, 9) for short in (1, 3, 5)}
    assert set(lengths) == upright | {(w, h) for h, w in upright}


def test_blur_changes_a_smooth_picture_equally_at_any_size() -> None:
    """A picture of 224 pixels is blurred as far as the same picture of 32, up to the rounding to pixels."""

    def mean_change(side: int) -> float:
        line = torch.linspace(0, 4 * torch.pi, side, dtype=torch.float64).sin()
        x = (0.5 + 0.25 * (line[:, None] + line)).expand(24, 1, side, side)
        return float((OPERATIONS["blur"](x, generator()) - x).abs().mean())

    small, large = mean_change(32), mean_change(224)
    assert small > 0.01
    assert large == pytest.approx(small, rel=0.2)


def test_blur_cuts_the_kernel_on_small_images() -> None:
    x = images(4, 1, 4, 4)
    long = np.full(4, 4)
    short = np.full(4, 3)
    assert torch.equal(gaussian_blur(x, long, long, np.full(4, 20.0)), gaussian_blur(x, short, short, np.full(4, 20.0)))


@pytest.mark.parametrize(("height", "width"), [(28, 28), (9, 13), (40, 12), (4, 4)])
def test_erase_sets_one_box_of_a_third_to_half_of_the_image_to_zero(height: int, width: int) -> None:
    x = images(60, 2, height, width)
    out = OPERATIONS["erase"](x, generator())
    corners = set()
    for image, outlier in zip(x, out, strict=True):
        hole = outlier[0] == 0
        assert torch.equal(outlier, image * ~hole)
        h, w = int(hole.any(1).sum()), int(hole.any(0).sum())
        assert int(hole.sum()) == h * w
        rows = hole.any(1).nonzero().flatten()
        assert int(rows[-1] - rows[0]) == h - 1
        slack = (h + w) / 2 + 0.25  # half a pixel of rounding per side
        assert 0.33 * height * width - slack <= h * w <= 0.5 * height * width + slack
        corners.add((int(rows[0]), int(hole.any(0).nonzero()[0]), h, w))
    assert len(corners) > (5 if height == 4 else 25)


def test_a_box_too_long_for_the_image_keeps_its_area() -> None:
    share, aspect = np.array([0.5, 0.5, 0.5]), np.array([3.0, 1 / 3, 1.0])
    assert [side.tolist() for side in fitting_box(share, aspect, 10, 40)] == [[10, 8, 10], [20, 24, 20]]
    assert [side.tolist() for side in fitting_box(share, aspect, 40, 10)] == [[24, 20, 20], [8, 10, 10]]


def test_a_plain_box_is_cut_to_the_image_and_has_at_least_one_pixel() -> None:
    h, w = box(np.array([0.5, 0.001]), np.array([3.0, 1.0]), 10, 40)
    assert (h.tolist(), w.tolist()) == ([10, 1], [8, 1])


def all_pastes(image: Tensor) -> dict[tuple[int, ...], Tensor]:
    found: dict[tuple[int, ...], Tensor] = {}
    for axis in (1, 2):
        side = image.shape[axis]
        half, quarter = side // 2, max(side // 4, 1)
        for source in range(side - half + 1):
            for target in range(side - half + 1):
                if abs(source - target) >= quarter:
                    copy = image.clone()
                    copy.narrow(axis, target, half).copy_(image.narrow(axis, source, half))
                    found[axis, source, target] = copy
    return found


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 13), (4, 4), (5, 7)])
def test_paste_copies_half_of_the_image_by_at_least_a_quarter(height: int, width: int) -> None:
    x = images(1, 2, height, width).expand(2000, 2, height, width)
    possible = all_pastes(x[0])
    table = torch.stack(list(possible.values())).flatten(1)
    same = (OPERATIONS["paste"](x, generator()).flatten(1).unsqueeze(1) == table).all(2)
    assert same.sum(1).eq(1).all()
    share = same.double().mean(0)
    per_axis = [sum(key[0] == axis for key in possible) for axis in (1, 2)]
    expected = torch.tensor([0.5 / per_axis[axis - 1] for axis, _, _ in possible])
    assert ((share - expected).abs() < 5 * (expected * (1 - expected) / len(x)).sqrt()).all()


def test_swap_exchanges_halves_along_either_axis() -> None:
    image = torch.arange(16.0).view(1, 4, 4)
    out = OPERATIONS["swap"](image.expand(50, 1, 4, 4), generator())
    up = image[:, [2, 3, 0, 1]]
    across = image[:, :, [2, 3, 0, 1]]
    assert {tuple(o.flatten().tolist()) for o in out} == {tuple(o.flatten().tolist()) for o in (up, across)}


def test_swap_keeps_the_middle_line_of_an_odd_side() -> None:
    image = torch.arange(35.0).view(1, 5, 7)
    out = OPERATIONS["swap"](image.expand(50, 1, 5, 7), generator())
    up = image[:, [3, 4, 2, 0, 1]]
    across = image[:, :, [4, 5, 6, 3, 0, 1, 2]]
    assert {tuple(o.flatten().tolist()) for o in out} == {tuple(o.flatten().tolist()) for o in (up, across)}


@pytest.mark.parametrize(("height", "width"), [(4, 4), (8, 8), (9, 13), (13, 9)])
def test_rotate_rotates_both_squares_of_a_band_by_the_same_angle(height: int, width: int) -> None:
    image = images(1, 2, height, width)[0]
    side = min(height, width) // 2
    possible = []
    for top in range(height - side + 1):
        for quarter in (1, 2, 3):
            turned = image.clone()
            for left in (0, width - side):
                square = image[:, top : top + side, left : left + side]
                turned[:, top : top + side, left : left + side] = square.rot90(quarter, (1, 2))
            possible.append(turned)
    out = OPERATIONS["rotate"](image.expand(2000, -1, -1, -1), generator())
    same = (out.flatten(1).unsqueeze(1) == torch.stack(possible).flatten(1)).all(2)
    assert same.sum(1).eq(1).all()
    expected = 1 / len(possible)
    assert ((same.double().mean(0) - expected).abs() < 5 * (expected / len(out)) ** 0.5).all()


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_operations_keep_shape_and_type_and_do_not_change_their_input(name: str, shape: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.float64):
        x = images(*shape, dtype=dtype)
        before = x.clone()
        out = OPERATIONS[name](x, generator())
        assert (out.shape, out.dtype) == (x.shape, dtype)
        assert torch.equal(x, before)
        assert out.isfinite().all()
        assert out.data_ptr() != x.data_ptr() or not len(x)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_sample_has_its_own_parameters_and_all_channels_share_them(name: str) -> None:
    plane = images(1, 1, 16, 16)
    out = OPERATIONS[name](plane.expand(30, 3, 16, 16), generator())
    torch.testing.assert_close(out, out[:, :1].expand_as(out))
    assert len({tuple(o.flatten().tolist()) for o in out}) > (1 if name == "swap" else 10)


@pytest.mark.parametrize("operation", [*OPERATIONS.values(), Destruction(AUTHORS)])
def test_outliers_depend_on_the_seed(operation: Destruction) -> None:
    x = images(16, 1, 12, 12)
    first, again, other = (operation(x, generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("operation", [*OPERATIONS.values(), Destruction(AUTHORS)])
def test_draws_do_not_depend_on_the_data(operation: Destruction) -> None:
    states = []
    for seed in (1, 2):
        random = generator(7)
        operation(images(16, 1, 12, 12, seed=seed), random)
        states.append(random.get_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("weights", [AUTHORS, UNIFORM, {"swap": 3.0, "crop": 1.0}])
def test_destruction_chooses_operations_with_their_weights(weights: dict[str, float]) -> None:
    destruction = Destruction(weights)
    n = 20_000
    counts = destruction.choose(n, generator()).bincount(minlength=len(weights)).tolist()
    total = sum(weights.values())
    for name, count in zip(destruction.names, counts, strict=True):
        share = weights[name] / total
        assert abs(count - n * share) < 5 * math.sqrt(n * share * (1 - share))


def test_weights_of_the_authors_sum_to_one_over_the_six_operations() -> None:
    for weights in (AUTHORS, UNIFORM):
        assert list(weights) == list(OPERATIONS)
        assert sum(weights.values()) == pytest.approx(1)


def test_choice_applies_the_chosen_operation_to_each_image() -> None:
    choice = Choice([lambda x, g: x + 10, lambda x, g: x + 20, lambda x, g: x + 30], [1, 2, 3])
    x = torch.arange(50.0).view(50, 1, 1, 1)
    chosen = choice.choose(50, generator(5))
    assert torch.equal(choice(x, generator(5)), x + 10 * (1 + chosen.view(50, 1, 1, 1)))


@pytest.mark.parametrize("shape", SHAPES)
def test_destruction_changes_every_image_but_not_its_input(shape: tuple[int, ...]) -> None:
    x = images(*shape)
    before = x.clone()
    out = Destruction(AUTHORS)(x, generator())
    assert out.shape == x.shape
    assert torch.equal(x, before)
    assert (out != x).flatten(1).any(1).all()


def test_destruction_accepts_any_memory_layout() -> None:
    x = images(12, 3, 8, 10)
    last = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(Destruction(AUTHORS)(last, generator()), Destruction(AUTHORS)(x, generator()))


@pytest.mark.parametrize("weights", [{}, {"crop": 0.0}, {"crop": -1.0, "blur": 2.0}, {"crop": math.nan}, {"melt": 1.0}])
def test_invalid_weights_are_rejected(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"weight|Weights|operations"):
        Destruction(weights)
