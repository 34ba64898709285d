"""ACS convolutions against 2-D convolutions of the slices of each view."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedwild.core.errors import UserError
from fedwild.models import build
from fedwild.models.acs import ACSConv
from tests.models.cases import inputs


def by_slices(x: Tensor, weight: Tensor, bias: Tensor | None, axis: int, stride: int, padding: int) -> Tensor:
    """Convolve every `stride`-th slice of the volume across an axis by itself, as an image."""
    slices = x.unbind(2 + axis)[::stride]
    return torch.stack([F.conv2d(image, weight, bias, stride, padding) for image in slices], dim=2 + axis)


@pytest.mark.parametrize(("kernel", "stride", "bias"), [(3, 1, False), (3, 2, True), (7, 2, False), (1, 2, False)])
def test_each_third_of_the_outputs_convolves_the_slices_of_its_view(kernel: int, stride: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = ACSConv(2, 7, kernel, stride=stride, padding=kernel // 2, bias=bias).double()
    x = torch.rand(2, 2, 6, 9, 7, dtype=torch.float64)
    found = layer(x)
    # Seven outputs are three axial, two coronal and two sagittal ones.
    for axis, rows in enumerate((slice(0, 3), slice(3, 5), slice(5, 7))):
        own = None if layer.bias is None else layer.bias[rows]
        expected = by_slices(x, layer.weight[rows], own, axis, stride, kernel // 2)
        assert torch.allclose(found[:, rows], expected, atol=1e-12)


def test_one_output_is_axial() -> None:
    layer = ACSConv(1, 1, 3, padding=1, bias=False)
    x = torch.rand(1, 1, 4, 5, 6)
    assert torch.allclose(layer(x), F.conv3d(x, layer.weight.unsqueeze(2), padding=(0, 1, 1)))


def test_the_network_for_volumes_has_the_tensors_of_the_one_for_images() -> None:
    params = {"width": 4, "stem": "large"}
    flat = build("resnet-18", (1, 28, 28), 6, params=params)
    volumes = build("resnet-18-3d", (1, 28, 28, 28), 6, params={**params, "convolution": "acs"})
    volumes.load_state_dict(flat.state_dict())
    assert volumes.eval()(inputs(volumes, 2)).shape == (2, 6)
    cubic = build("resnet-18-3d", (1, 28, 28, 28), 6, params=params)
    assert not any(isinstance(part, ACSConv) for part in cubic.modules())
    assert all(not isinstance(part, nn.Conv3d) for part in volumes.modules())


@pytest.mark.parametrize("convolution", ["3d", "acs"])
def test_the_large_stem_of_volumes_halves_twice(convolution: str) -> None:
    """As for images, the cut before the last stage of 28 pixels then has sides of 2."""
    params = {"width": 2, "stem": "large", "convolution": convolution}
    network = build("resnet-18-3d", (1, 28, 28, 28), 6, params=params).eval()
    sides = {cut: tuple(network.upto(inputs(network, 1), cut).shape[1:]) for cut in ("stem", "layer3")}
    assert sides == {"stem": (2, 7, 7, 7), "layer3": (8, 2, 2, 2)}


def test_outputs_of_different_views_are_never_exchanged() -> None:
    network = build("resnet-18-3d", (1, 8, 8, 8), 4, params={"width": 2, "convolution": "acs"})
    with pytest.raises(UserError, match=r"'stem\.conv' is an ACS convolution: its neurons cannot be aligned"):
        network.graph()
