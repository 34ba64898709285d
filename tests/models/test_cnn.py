from __future__ import annotations

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
