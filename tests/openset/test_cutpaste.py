"""CutPaste: the place and size of patches, the jitter, and random choices."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fedwild.openset import cutpaste
from fedwild.openset.cutpaste import jitter, strip_coordinates

SHAPES = [
    (5, 1, 8, 8),
    (5, 1, 28, 28),
    (5, 3, 32, 32),
    (5, 2, 9, 13),
    (5, 1, 4, 4),
    (5, 1, 6, 40),
    (1, 1, 28, 28),
    (0, 3, 8, 8),
]
KINDS = [cutpaste.normal, cutpaste.scar, cutpaste.union]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(shape, generator=generator(seed))


@pytest.fixture
def without_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutpaste, "JITTER", (1.0, 1.0))


def numbered(n: int, height: int, width: int) -> Tensor:
    """Return images whose pixels are their own positions, so that an outlier shows the source of each pixel."""
    return torch.arange(float(height * width), dtype=torch.float64).view(1, 1, height, width).expand(n, -1, -1, -1)


@pytest.mark.usefixtures("without_jitter")
@pytest.mark.parametrize(("height", "width"), [(28, 28), (12, 20)])
def test_normal_copies_one_box_of_the_given_area_to_another_place(height: int, width: int) -> None:
    x = numbered(100, height, width)
    moves = set()
    for image, outlier in zip(x[:, 0], cutpaste.normal(x, generator())[:, 0].round(), strict=True):
        changed = outlier != image
        rows, columns = changed.any(1).nonzero().flatten(), changed.any(0).nonzero().flatten()
        h, w = int(rows[-1] - rows[0]) + 1, int(columns[-1] - columns[0]) + 1
        assert int(changed.sum()) == h * w
        assert len((outlier - image)[changed].unique()) == 1
        source = outlier[changed].long()
        assert len((source // width).unique()) == h
        assert len((source % width).unique()) == w
        slack = (h + w) / 2 + 0.25  # half a pixel of rounding per side
        assert 0.02 * height * width - slack <= h * w <= 0.15 * height * width + slack
        assert (h - 0.5) / (w + 0.5) < 3.3
        assert (h + 0.5) / (w - 0.5) > 0.3
        moves.add((h, w, int(rows[0]), int(columns[0]), int(source[0])))
    assert len(moves) > 90


@pytest.mark.usefixtures("without_jitter")
@pytest.mark.parametrize(("height", "width"), [(64, 64), (32, 32), (28, 28), (8, 12)])
def test_scar_pastes_a_strip_of_the_given_size(height: int, width: int) -> None:
    x = numbered(200, height, width)
    longest = min(height, width) // 2
    counts = []
    for image, outlier in zip(x[:, 0], cutpaste.scar(x, generator())[:, 0].round(), strict=True):
        source = outlier[outlier != image].long()
        if len(source):
            assert int(source.max() // width - source.min() // width) < min(25, longest)
            assert int((source % width).max() - (source % width).min()) < min(16, longest)
        counts.append(len(source))
    assert max(counts) <= 1.2 * min(16, longest) * min(25, longest)
    assert len(set(counts)) > (5 if height == 8 else 40)


def strip(angle: float, h: int, w: int, side: int, place: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draws = np.array([place])
    row, column = strip_coordinates(np.array([angle]), np.array([h]), np.array([w]), draws, draws, side, side)
    return row[0], column[0], (row[0] >= 0) & (row[0] < h) & (column[0] >= 0) & (column[0] < w)


def test_a_strip_without_rotation_is_an_exact_copy() -> None:
    row, column, mask = strip(0.0, 4, 3, 10, 0.0)
    expected = np.zeros((10, 10), dtype=bool)
    expected[:4, :3] = True
    assert (mask == expected).all()
    assert row[mask].tolist() == [i for i in range(4) for _ in range(3)]
    assert column[mask].tolist() == [j for _ in range(4) for j in range(3)]


def test_rotation_keeps_distances_within_the_strip() -> None:
    row, column, mask = strip(math.radians(30), 12, 8, 24, 0.5)
    source = torch.tensor(np.stack([row[mask], column[mask]], axis=1)).double()
    target = torch.tensor(np.argwhere(mask)).double()
    assert (torch.cdist(source, source) - torch.cdist(target, target)).abs().max() < 2**0.5
    lengthwise = target[source[:, 0].argmax()] - target[source[:, 0].argmin()]
    assert lengthwise[0] > 0
    assert lengthwise[1] != 0


@pytest.mark.parametrize("angle", [-45, -20, 10, 45])
@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_a_rotated_strip_keeps_its_area_and_lies_within_the_image(angle: float, place: float) -> None:
    _, _, mask = strip(math.radians(angle), 16, 12, 32, place)
    assert int(mask.sum()) == pytest.approx(16 * 12, rel=0.06)


def test_union_is_either_kind_for_about_half_of_the_images() -> None:
    chosen = cutpaste.union.choose(20_000, generator())
    assert cutpaste.union.operations == (cutpaste.normal, cutpaste.scar)
    assert abs(int(chosen.sum()) - 10_000) < 5 * math.sqrt(20_000 / 4)


def test_jitter_scales_brightness_contrast_and_saturation_of_the_patch() -> None:
    x = images(4, 3, 5, 6)
    mask = torch.zeros(4, 5, 6, dtype=torch.bool)
    mask[:, 1:4, 2:5] = True
    brightness, contrast, saturation = (images(4, seed=seed) * 0.2 + 0.9 for seed in (2, 3, 4))
    expected = []
    for image, b, c, s in zip(x[:, :, 1:4, 2:5], brightness, contrast, saturation, strict=True):
        patch = image * b
        red, green, blue = patch
        mean = (0.299 * red + 0.587 * green + 0.114 * blue).mean()
        patch = mean + c * (patch - mean)
        grey = 0.299 * patch[0] + 0.587 * patch[1] + 0.114 * patch[2]
        expected.append(grey + s * (patch - grey))
    out = jitter(x, mask, brightness, contrast, saturation)
    torch.testing.assert_close(out[:, :, 1:4, 2:5], torch.stack(expected))


def test_saturation_changes_only_colour_images() -> None:
    x, one = images(2, 1, 4, 4), torch.ones(2)
    everywhere = torch.ones(2, 4, 4, dtype=torch.bool)
    torch.testing.assert_close(jitter(x, everywhere, one, one, one * 1.1), x)
    torch.testing.assert_close(jitter(x, everywhere, one * 1.1, one, one), x * 1.1)


@pytest.mark.parametrize("kind", KINDS)
def test_jitter_differs_between_images_and_keeps_their_range(kind: cutpaste.Choice) -> None:
    x = images(64, 3, 16, 16) * torch.linspace(0.1, 1, 64).view(64, 1, 1, 1)
    out = kind(x, generator())
    assert (out.amax((1, 2, 3)) <= x.amax((1, 2, 3))).all()
    assert (out.amin((1, 2, 3)) >= x.amin((1, 2, 3))).all()
    changed = out[out != x]
    assert not torch.isin(changed, x).float().mean() > 0.05


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_outliers_keep_shape_and_type_and_do_not_change_their_input(
    kind: cutpaste.Choice, shape: tuple[int, ...]
) -> None:
    for dtype in (torch.float32, torch.float64):
        x = images(*shape).to(dtype)
        before = x.clone()
        out = kind(x, generator())
        assert (out.shape, out.dtype) == (x.shape, dtype)
        assert torch.equal(x, before)
        assert out.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_outliers_depend_on_the_seed(kind: cutpaste.Choice) -> None:
    x = images(16, 1, 12, 12)
    first, again, other = (kind(x, generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({tuple(o.flatten().tolist()) for o in kind(x[:1].expand(16, -1, -1, -1), generator())}) == 16
