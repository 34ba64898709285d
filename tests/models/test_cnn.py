from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.modules.dropout import _DropoutNd

from fedwild.models import build
from tests.models.cases import inputs


def count(name: str, shape: tuple[int, ...], outputs: int = 10) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build(name, shape, outputs).parameters())


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 8, 11), (1, 28, 28), (3, 32, 32), (1, 40, 28), (3, 27, 64)])
@pytest.mark.parametrize("name", ["simple-cnn", "vgg-9"])
def test_images_of_many_sizes_give_logits(name: str, shape: tuple[int, ...]) -> None:
    network = build(name, shape, 4)
    assert network(inputs(network, 2)).shape == (2, 4)


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 9, 6), (1, 12, 12)])
def test_digit_cnn_accepts_images_of_many_sizes(shape: tuple[int, ...]) -> None:
    network = build("digit-cnn", shape, 4)
    assert network(inputs(network, 2)).shape == (2, 4)


def test_simple_cnn_has_the_published_number_of_parameters() -> None:
    assert count("simple-cnn", (1, 28, 28)) == 44_426


def test_digit_cnn_has_about_14_million_parameters() -> None:
    assert 13_000_000 < count("digit-cnn", (3, 28, 28)) < 15_000_000


def test_digit_five_cnn_has_the_dense_layers_of_the_gains_program_and_31_8_million_parameters() -> None:
    assert round(count("digit-five-cnn", (3, 32, 32)) / 1e6, 1) == 31.8
    with torch.device("meta"):
        network = build("digit-five-cnn", (3, 32, 32), 10)
    widths = [network.get_submodule(name).weight.shape for name in ("fc1.fc", "fc2.fc", "head")]
    assert widths == [(3072, 8192), (2048, 3072), (10, 2048)]
    assert network.cuts == ("conv1", "conv2", "conv3", "fc1", "fc2")


def test_digit_five_cnn_drops_units_of_the_first_dense_layer() -> None:
    for share in (0.0, 0.5):
        network: Any = build("digit-five-cnn", (1, 8, 8), 3, params={"width": 0.1, "dropout": share})
        (dropout,) = [part for part in network.modules() if isinstance(part, _DropoutNd)]
        assert (network.fc1.dropout, dropout.p) == (dropout, share)
        x = inputs(network, 4)
        assert torch.equal(network.train()(x), network(x)) == (share == 0)
        assert torch.equal(network.eval()(x), network(x))


def test_vgg_9_has_about_3_5_million_parameters() -> None:
    assert 3_400_000 < count("vgg-9", (3, 32, 32)) < 3_600_000


def test_vgg_9_drops_channels_and_units_if_asked() -> None:
    plain, dropping = (build("vgg-9", (3, 16, 16), 10, params={"width": 0.25, "dropout": on}) for on in (False, True))
    dropping.load_state_dict(plain.state_dict())
    x = inputs(plain, 4)
    assert torch.equal(plain.train()(x), plain.eval()(x))
    assert torch.equal(plain(x), dropping.eval()(x))
    dropping.train()
    assert not torch.equal(dropping(x), dropping(x))
    shares = [(type(part).__name__, part.p) for part in dropping.modules() if isinstance(part, _DropoutNd)]
    assert shares == [("Dropout2d", 0.05), ("Dropout", 0.1), ("Dropout", 0.1)]


def test_stages_are_the_named_cut_points() -> None:
    assert build("simple-cnn", (1, 8, 8), 2).cuts == ("conv1", "conv2", "fc1", "fc2")
    assert build("digit-cnn", (1, 4, 4), 2).cuts == ("conv1", "conv2", "conv3", "fc1", "fc2")


def test_simple_cnn_pads_small_images_only() -> None:
    small, large = build("simple-cnn", (1, 8, 8), 2), build("simple-cnn", (1, 28, 28), 2)
    assert small.upto(inputs(small), "conv2").shape == (3, 16, 2, 2)
    assert large.upto(inputs(large), "conv2").shape == (3, 16, 4, 4)
