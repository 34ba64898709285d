"""Personal heads follow a network at any cut."""

from __future__ import annotations

import pytest
import torch

from fedwild.models import build
from fedwild.methods.fedoss.branches import Bank, FullBranch, LightBranch, cut_shape, make_branch, pooled
from fedwild.contract.task import weights_of

NETWORKS = [
    ("simple-cnn", (1, 28, 28), {}),
    ("digit-cnn", (3, 16, 16), {"width": 0.05}),
    ("resnet-18", (3, 16, 16), {"width": 2}),
    ("resnet-18-3d", (1, 12, 12, 12), {"width": 2}),
    ("mlp", (20,), {"hidden": [8, 6]}),
]


@pytest.mark.parametrize(("name", "shape", "params"), NETWORKS)
@pytest.mark.parametrize("kind", ["light", "full"])
def test_a_branch_answers_at_every_cut(name: str, shape: tuple[int, ...], params: dict, kind: str) -> None:
    network = build(name, shape, 4, params=params).eval()
    x = torch.rand(2, *shape)
    for cut in network.cuts:
        h = network.upto(x, cut)
        assert tuple(h.shape[1:]) == cut_shape(network, cut)
        assert make_branch(kind, network, cut, 3).eval()(h).shape == (2, 3)


def test_a_full_branch_begins_as_the_network_does() -> None:
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
            parameter += 1
    after = weights_of(network)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_light_branch_is_linear_on_means_over_space() -> None:
    branch = LightBranch(3, 2)
    h = torch.rand(4, 3, 5, 5)
    assert torch.allclose(branch(h), h.mean((2, 3)) @ branch.head.weight.T + branch.head.bias)
    assert torch.equal(pooled(h[:, :, 0, 0]), h[:, :, 0, 0])


def test_asking_for_the_shape_leaves_mode_and_statistics() -> None:
    network = build("digit-cnn", (3, 16, 16), 4, params={"width": 0.05}).train()
    before = weights_of(network)
    cut_shape(network, "conv3")
    assert network.training
    after = weights_of(network)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_bank_answers_for_each_member_and_keeps_its_snapshot() -> None:
    own = LightBranch(4, 3)
    members = [{name: torch.randn_like(t) for name, t in own.state_dict().items()} for _ in range(2)]
    bank = Bank(own, members)
    h = torch.rand(5, 4)
    before = bank.logits(h)
    assert before.shape == (2, 5, 3)
    for answers, weights in zip(before, members, strict=True):
        assert torch.allclose(answers, h @ weights["head.weight"].T + weights["head.bias"])
    with torch.no_grad():
        own.head.weight += 1
        members[0]["head.weight"] += 1
    assert torch.equal(bank.logits(h), before)
