"""The named outlier generators: what they consist of, and the shapes that they accept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedwild.core.errors import UserError
from fedwild.data.samples import Normalisation
from fedwild.openset import cutpaste
from fedwild.openset.destruction import AUTHORS, OPERATIONS, UNIFORM, Choice, Destruction
from fedwild.openset.outliers import OUTLIERS

NAMES = ["destruction", "uniform", "crop", "blur", "erase", "paste", "swap", "rotate", "cutpaste", "mixture"]
SHAPES = [(6, 1, 8, 8), (6, 1, 28, 28), (6, 3, 32, 32), (6, 2, 9, 13), (6, 1, 4, 4), (1, 1, 28, 28), (0, 3, 8, 8)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*shape: int) -> Tensor:
    return torch.rand(shape, generator=generator(1)) + 0.01


def test_generators_are_registered_under_their_names_with_a_summary() -> None:
    assert list(OUTLIERS) == NAMES
    for name in NAMES:
        assert OUTLIERS[name].name == name
        assert OUTLIERS[name].summary.endswith(".")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_outliers_are_new_images_of_the_same_shape(name: str, shape: tuple[int, ...]) -> None:
    x = images(*shape)
    before = x.clone()
    out = OUTLIERS[name](x, generator())
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert torch.equal(x, before)
    assert torch.equal(out, OUTLIERS[name](x, generator()))


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_single_operations_are_those_of_destruction(name: str) -> None:
    x = images(8, 1, 12, 12)
    assert torch.equal(OUTLIERS[name](x, generator()), OPERATIONS[name](x, generator()))


@pytest.mark.parametrize(
    ("name", "operation"),
    [("destruction", Destruction(AUTHORS)), ("uniform", Destruction(UNIFORM)), ("cutpaste", cutpaste.union)],
)
def test_named_choices_are_their_operations(name: str, operation: Choice) -> None:
    x = images(40, 1, 12, 12)
    assert torch.equal(OUTLIERS[name](x, generator()), operation(x, generator()))


def test_mixture_is_destruction_or_cutpaste_with_equal_chance() -> None:
    mixture = OUTLIERS["mixture"].function
    assert isinstance(mixture, Choice)
    destruction, other = mixture.operations
    assert isinstance(destruction, Destruction)
    assert other is cutpaste.union
    assert abs(int(mixture.choose(20_000, generator()).sum()) - 10_000) < 5 * (20_000 / 4) ** 0.5


@pytest.mark.parametrize("name", NAMES)
def test_all_slices_of_a_volume_change_alike(name: str) -> None:
    slices = images(6, 1, 1, 10, 12).expand(6, 1, 5, 10, 12)
    out = OUTLIERS[name](slices, generator())
    assert out.shape == slices.shape
    torch.testing.assert_close(out, out[:, :, :1].expand_as(out))
    volume = images(6, 2, 5, 10, 12)
    assert torch.equal(
        OUTLIERS[name](volume, generator()).flatten(1, 2), OUTLIERS[name](volume.flatten(1, 2), generator())
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(8, 20), (8, 3, 20), (8, 1, 3, 28), (8, 1, 28, 3), (8,)])
def test_other_samples_than_images_are_rejected(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError) as caught:
        OUTLIERS[name](images(*shape), generator())
    message = str(caught.value)
    assert "objective.outliers" in message
    assert "images" in message
    assert str(shape[1:]) in message
    assert message.count("\n") == 0


@pytest.mark.parametrize("name", NAMES)
def test_images_may_be_on_another_device_than_the_generator(name: str) -> None:
    x = images(20, 3, 8, 8).to("meta")
    out = OUTLIERS[name](x, generator())
    assert (out.shape, out.device) == (x.shape, x.device)


@pytest.mark.parametrize("name", NAMES)
def test_normalised_inputs_give_the_normalised_outliers_of_the_pixels(name: str) -> None:
    pixels = torch.rand(12, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    levels = torch.tensor([[0.5, 0.4, 0.3], [0.2, 0.3, 0.1]], dtype=torch.float64)
    mean, std = levels.view(2, 1, 3, 1, 1)
    inputs = (pixels - mean) / std
    made = OUTLIERS[name](inputs, torch.Generator().manual_seed(1), Normalisation(mean, std))
    expected = (OUTLIERS[name](pixels, torch.Generator().manual_seed(1)) - mean) / std
    assert torch.allclose(made, expected, atol=1e-12)


def test_an_erased_box_is_black_and_not_grey() -> None:
    inputs = torch.full((4, 1, 8, 8), 1.5)
    normalisation = Normalisation(torch.tensor(0.5), torch.tensor(0.25))
    erased = OUTLIERS["erase"](inputs, torch.Generator().manual_seed(0), normalisation)
    assert sorted(erased.unique().tolist()) == [-2.0, 1.5]
