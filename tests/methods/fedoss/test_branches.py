"""Personal heads continue a network at any cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedwild.contract.task import weights_of
from fedwild.methods.fedoss.heads import FullBranch, LightBranch, cut_shape, make_branch
from fedwild.methods.fedoss.settings import BranchKind
from fedwild.models import build

NETWORKS = [
    ("simple-cnn", (1, 28, 28), {}),
    ("digit-cnn", (3, 16, 16), {"width": 0.05}),
    ("resnet-18", (3, 16, 16), {"width": 2}),
    ("resnet-18-3d", (1, 12, 12, 12), {"width": 2}),
    ("mlp", (20,), {"hidden": [8, 6]}),
]


@pytest.mark.parametrize(("name", "shape", "params"), NETWORKS)
@pytest.mark.parametrize("kind", ["light", "full"])
def test_a_branch_answers_at_every_cut(
    name: str, shape: tuple[int, ...], params: dict[str, Any], kind: BranchKind
) -> None:
    network = build(name, shape, 4, params=params).eval()
    x = torch.rand(2, *shape)
    for cut in network.cuts:
        h = network.upto(x, cut)
        assert tuple(h.shape[1:]) == cut_shape(network, cut)
        assert make_branch(kind, network, cut, 3).eval()(h).shape == (2, 3)


def test_a_full_branch_starts_with_the_weights_of_the_network() -> None:
    network = build("resnet-18", (3, 16, 16), 4, params={"width": 2}).eval()
    branch = FullBranch(network, "layer2", 3).eval()
    h = network.upto(torch.rand(2, 3, 16, 16), "layer2")
    assert torch.allclose(branch(h), network.after(h, "layer2")[:, :3], atol=1e-6)


def test_a_full_branch_shares_no_weights_with_the_network() -> None:
    network = build("mlp", (5,), 4, params={"hidden": [6, 6]})
    branch = FullBranch(network, "fc1", 3)
    before = weights_of(network)
    with torch.no_grad():
        for parameter in branch.parameters():
            parameter.add_(1)
    after = weights_of(network)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_light_branch_is_linear_on_means_over_space() -> None:
    branch = LightBranch(3, 2)
    h = torch.rand(4, 3, 5, 5)
    assert torch.allclose(branch(h), h.mean((2, 3)) @ branch.head.weight.T + branch.head.bias)
    flat = h[:, :, 0, 0]
    assert torch.equal(branch(flat), branch.head(flat))


def test_the_shape_is_found_without_changing_mode_or_statistics() -> None:
    network = build("digit-cnn", (3, 16, 16), 4, params={"width": 0.05}).train()
    before = weights_of(network)
    cut_shape(network, "conv3")
    assert network.training
    after = weights_of(network)
    assert all(torch.equal(before[name], after[name]) for name in before)
