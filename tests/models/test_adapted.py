from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedwild.core.errors import UserError
from fedwild.models import AdaptedNetwork
from tests.models.cases import inputs
from tests.models.own_modules import BareLinear, HeadDefinedFirst, PlainNet

SHAPE = (3, 8, 8)


def adapted(outputs: int = 4, bias: bool = True) -> tuple[PlainNet, AdaptedNetwork]:
    torch.manual_seed(0)
    module = PlainNet(SHAPE, 4)
    original = copy.deepcopy(module)
    return original, AdaptedNetwork("own:PlainNet", module, SHAPE, outputs, bias)


def test_logits_are_the_modules_own_when_the_head_fits() -> None:
    original, network = adapted()
    x = inputs(network)
    assert torch.equal(network.eval()(x), original.eval()(x))


def test_the_only_cut_is_features_and_its_halves_agree_with_the_whole() -> None:
    _, network = adapted()
    network.eval()
    x = inputs(network)
    h = network.upto(x, "features")
    assert network.cuts == ("features",)
    assert h.shape == (3, network.embedding_dim)
    assert torch.equal(network.embed_after(h, "features"), network.embed(x))
    assert torch.equal(network.after(h, "features"), network(x))


def test_state_keys_are_prefixed_and_hold_the_head_once() -> None:
    original, network = adapted()
    body = {f"features.module.{key}" for key in original.state_dict() if not key.startswith("classifier")}
    assert set(network.state_dict()) == body | {"head.weight", "head.bias"}


def test_the_users_class_mode_and_statistics_are_kept() -> None:
    original, network = adapted()
    module = network.get_submodule("features.module")
    assert type(module) is PlainNet
    assert module.training
    assert module.norm.running_mean is not None and original.norm.running_mean is not None
    assert torch.equal(module.norm.running_mean, original.norm.running_mean)


def test_a_head_of_another_width_or_without_bias_is_replaced() -> None:
    assert adapted(outputs=9)[1](torch.zeros(2, *SHAPE)).shape == (2, 9)
    assert adapted(bias=False)[1].head.bias is None


def test_the_head_is_the_linear_layer_that_runs_last_and_logits_come_before_the_softmax() -> None:
    torch.manual_seed(0)
    module = HeadDefinedFirst()
    original = copy.deepcopy(module)
    network = AdaptedNetwork("own:HeadDefinedFirst", module, (4,), 10)
    x = inputs(network)
    assert network.embedding_dim == 6
    assert torch.equal(network(x), original.head(original.body(x).relu()))


def test_a_module_that_is_a_linear_layer_has_the_input_as_its_embedding() -> None:
    network = AdaptedNetwork("own:BareLinear", BareLinear((4,), 2), (4,), 2)
    x = inputs(network)
    assert torch.equal(network.embed(x), x)
    assert set(network.state_dict()) == {"head.weight", "head.bias"}


def test_gradient_reaches_every_parameter_of_the_users_module() -> None:
    _, network = adapted()
    network(inputs(network, 8)).square().sum().backward()
    assert all(p.grad is not None for p in network.parameters())


def test_the_head_grows() -> None:
    _, network = adapted()
    old = network.head.weight.clone()
    network.grow_head(6)
    assert torch.equal(network.head.weight[:4], old)


def test_the_layer_graph_is_unknown() -> None:
    with pytest.raises(UserError, match="layer graph of model 'own:PlainNet' is unknown"):
        adapted()[1].graph()


def test_a_module_that_skips_its_head_later_is_reported() -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :2] if self.training else self.fc(x)

    network = AdaptedNetwork("own:Fickle", Fickle(), (4,), 2)
    with pytest.raises(RuntimeError, match="Fickle did not reach its last linear layer"):
        network(inputs(network))
