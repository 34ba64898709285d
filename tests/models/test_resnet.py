from __future__ import annotations

from typing import Any

import pytest
import torch

from fedwild.models import build
from tests.models.cases import inputs


def count(name: str, shape: tuple[int, ...], outputs: int, **params: Any) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build(name, shape, outputs, params=params).parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet-18", 11_689_512), ("resnet-34", 21_797_672), ("resnet-50", 25_557_032)],
)
def test_imagenet_sizes_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    assert count(name, (3, 224, 224), 1000) == parameters


def test_cifar_size_has_the_usual_number_of_parameters() -> None:
    assert count("resnet-18", (3, 32, 32), 10) == 11_173_962


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 1, 1), (3, 33, 17), (1, 96, 100)])
@pytest.mark.parametrize("name", ["resnet-18", "resnet-34", "resnet-50"])
def test_images_of_any_size_give_logits(name: str, shape: tuple[int, ...]) -> None:
    network = build(name, shape, 4, params={"width": 2}).eval()
    assert network(inputs(network, 2)).shape == (2, 4)


@pytest.mark.parametrize("shape", [(1, 5, 9, 6), (2, 16, 16, 16)])
def test_volumes_of_any_size_give_logits(shape: tuple[int, ...]) -> None:
    network = build("resnet-18-3d", shape, 4, params={"width": 2}).eval()
    assert network(inputs(network, 2)).shape == (2, 4)


def test_cut_points_are_stem_and_four_layers() -> None:
    network = build("resnet-18", (3, 16, 16), 4, params={"width": 2})
    assert network.cuts == ("stem", "layer1", "layer2", "layer3", "layer4")
    sides = [network.upto(inputs(network), cut).shape[1:] for cut in network.cuts]
    assert sides == [(2, 16, 16), (2, 16, 16), (4, 8, 8), (8, 4, 4), (16, 2, 2)]


@pytest.mark.parametrize(
    ("side", "stem", "stem_side"),
    [(95, "auto", 95), (96, "auto", 24), (96, "small", 96), (32, "large", 8)],
)
def test_the_stem_depends_on_the_image_size_unless_set(side: int, stem: str, stem_side: int) -> None:
    network = build("resnet-18", (1, side, side), 4, params={"width": 1, "stem": stem})
    assert network.upto(inputs(network, 1), "stem").shape == (1, 1, stem_side, stem_side)


def test_a_training_batch_of_one_works_if_the_last_stage_has_several_positions() -> None:
    network = build("resnet-18", (1, 16, 16), 4, params={"width": 2}).train()
    assert network(inputs(network, 1)).isfinite().all()
