from __future__ import annotations

import pytest
import torch

from fedwild.models import build
from tests.models.cases import inputs


@pytest.mark.parametrize(("name", "parameters"), [("wrn-28-10", 36_479_194), ("wrn-16-4", 2_748_890)])
def test_networks_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in build(name, (3, 32, 32), 10).parameters()) == parameters


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 7, 10)])
def test_images_of_any_size_give_logits(shape: tuple[int, ...]) -> None:
    network = build("wrn-16-4", shape, 4)
    assert network(inputs(network, 2)).shape == (2, 4)


def test_cut_points_are_stem_and_three_blocks() -> None:
    network = build("wrn-16-4", (3, 8, 8), 4)
    assert network.cuts == ("stem", "block1", "block2", "block3")
    shapes = [network.upto(inputs(network), cut).shape[1:] for cut in network.cuts]
    assert shapes == [(16, 8, 8), (64, 8, 8), (128, 4, 4), (256, 2, 2)]


def test_dropout_acts_in_training_only() -> None:
    network = build("wrn-16-4", (3, 8, 8), 4, params={"dropout": 0.5})
    x = inputs(network)
    assert not torch.equal(network(x), network(x))
    network.eval()
    assert torch.equal(network(x), network(x))


def test_without_dropout_training_is_deterministic() -> None:
    network = build("wrn-16-4", (3, 8, 8), 4)
    assert torch.equal(network(inputs(network)), network(inputs(network)))
