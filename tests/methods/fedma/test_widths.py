"""Networks that are wider or narrower than their architecture."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedwild.core.errors import UserError
from fedwild.methods.fedma.layers import resize
from fedwild.models import Network, build
from tests.models.cases import WITH_GRAPH, inputs, make, stir_norms

# (network, its shape, the settings it is built with, the settings whose weights it is given)
OTHERS: list[tuple[str, tuple[int, ...], dict[str, Any], dict[str, Any]]] = [
    ("mlp", (20,), {"hidden": [8, 6]}, {"hidden": [11, 7]}),
    ("mlp", (20,), {"hidden": [8, 6]}, {"hidden": [3, 9]}),
    ("digit-cnn", (3, 8, 8), {"width": 0.02}, {"width": 0.05}),
    ("resnet-18", (3, 8, 8), {"width": 2}, {"width": 3}),
]


def network_of(name: str, shape: tuple[int, ...], params: dict[str, Any]) -> Network:
    torch.manual_seed(0)
    network = build(name, shape, 5, params=params)
    stir_norms(network)
    return network


def given(state: dict[str, Tensor], **changes: Tensor) -> dict[str, Tensor]:
    return {**state, **{name.replace("__", "."): tensor for name, tensor in changes.items()}}


@pytest.mark.parametrize(("name", "shape", "built", "wanted"), OTHERS)
@pytest.mark.parametrize("training", [False, True])
def test_it_computes_what_a_network_built_with_these_widths_computes(
    name: str, shape: tuple[int, ...], built: dict[str, Any], wanted: dict[str, Any], training: bool
) -> None:
    other = network_of(name, shape, wanted).train(training)
    network = resize(network_of(name, shape, built), other.state_dict()).train(training)
    x = inputs(network, 6)
    assert torch.equal(network(x), other(x))
    assert network.graph() == other.graph()
    assert network.embedding_dim == other.embedding_dim
    assert str(network) == str(other)


def test_a_convolution_before_a_flatten_may_be_wider_than_any_setting_allows() -> None:
    network = make("simple-cnn")
    state = network.state_dict()
    torch.manual_seed(1)
    fresh = {
        "conv1.conv.weight": torch.randn(9, 1, 5, 5),
        "conv1.conv.bias": torch.randn(9),
        "conv2.conv.weight": torch.randn(16, 9, 5, 5) / 9,
    }
    resize(network, {**state, **fresh})
    x = inputs(network)
    h = F.relu(F.max_pool2d(F.conv2d(x, fresh["conv1.conv.weight"], fresh["conv1.conv.bias"], padding=2), 2))
    h = F.relu(F.max_pool2d(F.conv2d(h, fresh["conv2.conv.weight"], state["conv2.conv.bias"], padding=2), 2))
    h = F.relu(F.linear(h.flatten(1), state["fc1.fc.weight"], state["fc1.fc.bias"]))
    h = F.relu(F.linear(h, state["fc2.fc.weight"], state["fc2.fc.bias"]))
    expected = F.linear(h, state["head.weight"], state["head.bias"])
    torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-4)


def test_weights_are_copied_and_all_parameters_can_be_trained() -> None:
    wide = network_of("digit-cnn", (3, 8, 8), {"width": 0.05}).state_dict()
    before = {name: tensor.clone() for name, tensor in wide.items()}
    network = resize(network_of("digit-cnn", (3, 8, 8), {"width": 0.02}), wide)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.5)
    network(inputs(network, 6)).square().sum().backward()
    optimiser.step()
    assert all(torch.equal(wide[name], tensor) for name, tensor in before.items())
    changed = network.state_dict()
    assert all(not torch.equal(changed[name], wide[name]) for name in wide)


def test_its_head_can_grow_afterwards() -> None:
    network = resize(
        network_of("mlp", (20,), {"hidden": [8, 6]}), network_of("mlp", (20,), {"hidden": [8, 9]}).state_dict()
    )
    network.grow_head(7)
    assert network(inputs(network)).shape == (3, 7)


def test_statistics_stay_statistics_and_parameters_parameters() -> None:
    other = network_of("digit-cnn", (3, 8, 8), {"width": 0.05})
    network = resize(network_of("digit-cnn", (3, 8, 8), {"width": 0.02}), other.state_dict())
    assert dict(network.named_buffers()).keys() == dict(other.named_buffers()).keys()
    assert dict(network.named_parameters()).keys() == dict(other.named_parameters()).keys()
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in network.parameters())


@pytest.mark.parametrize("name", sorted({*WITH_GRAPH} - {"wrn-28-10"}))  # a large one, of the same blocks as wrn-16-4
def test_its_own_weights_fit_every_network(name: str) -> None:
    network = make(name).eval()
    x = inputs(network)
    before = network(x)
    assert torch.equal(resize(network, network.state_dict())(x), before)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"fc1__fc__weight": torch.zeros(9, 20), "fc1__fc__bias": torch.zeros(9)},
            r"'fc2.fc.weight' is \(6, 8\).*\(6, 9\)",
        ),
        ({"fc1__fc__bias": torch.zeros(9)}, r"'fc1.fc.bias' is \(9,\).*\(8,\)"),
        ({"fc1__fc__weight": torch.zeros(8, 21)}, r"'fc1.fc.weight' is \(8, 21\).*\(8, 20\)"),
        ({"head__weight": torch.zeros(4, 6), "head__bias": torch.zeros(4)}, r"'head.weight' is \(4, 6\).*\(5, 6\)"),
        ({"fc1__fc__bias": torch.zeros(8, 1)}, r"'fc1.fc.bias' is .* cannot replace"),
        ({"fc1__fc__bias": torch.zeros(8).double()}, r"'fc1.fc.bias' is torch.float64"),
        ({"fc1__fc__weight": torch.zeros(0, 20)}, r"'fc1.fc.weight' is .* cannot replace"),
        ({"fc9__fc__weight": torch.zeros(8, 20)}, r"'fc9.fc.weight' is not in both"),
    ],
)
def test_tensors_that_do_not_fit_are_rejected_and_nothing_changes(changes: dict[str, Tensor], sentence: str) -> None:
    network = network_of("mlp", (20,), {"hidden": [8, 6]})
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(UserError, match=sentence):
        resize(network, given(before, **changes))
    assert all(torch.equal(network.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("leaf", ["weight", "bias", "running_mean", "running_var"])
def test_a_norm_of_another_width_than_its_layer_is_rejected(leaf: str) -> None:
    network = network_of("digit-cnn", (3, 8, 8), {"width": 0.05})
    name = f"conv2.norm.{leaf}"
    with pytest.raises(UserError, match=name):
        resize(network, {**network.state_dict(), name: torch.ones(5)})


def test_a_layer_after_a_flatten_needs_all_positions_of_every_channel() -> None:
    network = make("simple-cnn")
    state = network.state_dict()
    wider = {**state, "conv2.conv.weight": torch.zeros(17, 6, 5, 5), "conv2.conv.bias": torch.zeros(17)}
    with pytest.raises(UserError, match=r"'fc1.fc.weight' is \(120, 96\).*\(120, 102\)"):
        resize(network, wider)
