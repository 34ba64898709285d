from __future__ import annotations

import pytest
import torch
from torch import nn

from fedwild.errors import UserError
from fedwild.models import LayerGraph, has_batch_norm
from fedwild.models.graph import Wire, build_graph
from tests.models.cases import CASES, inputs, make, stir_norms


def random_permutations(graph: LayerGraph) -> dict[str, torch.Tensor]:
    """A random order for each space, never the identity: every tensor has to move."""
    orders = {space: torch.randperm(width) for space, width in graph.spaces.items()}
    return {
        space: order.roll(1) if torch.equal(order, torch.arange(len(order))) else order
        for space, order in orders.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_permuting_all_spaces_leaves_the_function_unchanged(name: str) -> None:
    network = make(name).eval()
    stir_norms(network)
    graph, state = network.graph(), network.state_dict()
    x = inputs(network)
    with torch.no_grad():
        before = network(x)
        permuted = graph.permute(state, random_permutations(graph))
        moved = [key for key in state if not torch.equal(permuted[key], state[key])]
        network.load_state_dict(permuted)
        after = network(x)
    assert before.std() > 1e-2
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
    assert len(moved) == sum(value.dim() > 0 for value in state.values()) - ("head.bias" in state)


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_and_float_buffer_belongs_to_a_layer_of_the_graph(name: str) -> None:
    network = make(name)
    layers = {layer.name for layer in network.graph().layers}
    floats = {key for key, value in network.state_dict().items() if value.is_floating_point()}
    assert {key.rpartition(".")[0] for key in floats} == layers


@pytest.mark.parametrize("name", CASES)
def test_layers_read_only_spaces_written_before_and_widths_match(name: str) -> None:
    network = make(name)
    graph, state = network.graph(), network.state_dict()
    written: set[str] = set()
    for layer in graph.layers:
        weight = state[f"{layer.name}.weight"]
        if layer.inputs is not None:
            assert layer.inputs in written
            if layer.kind != "norm":
                assert weight.shape[1] == graph.spaces[layer.inputs] * layer.fold
        if layer.outputs is not None:
            assert weight.shape[0] == graph.spaces[layer.outputs]
            written.add(layer.outputs)
    assert written == set(graph.spaces)
    assert graph.layers[0].inputs is None
    assert (graph.layers[-1].name, graph.layers[-1].outputs) == ("head", None)


def test_flatten_folds_positions_into_the_linear_layer_that_follows() -> None:
    folds = {layer.name: layer.fold for layer in make("simple-cnn").graph().layers}
    assert folds == {"conv1.conv": 1, "conv2.conv": 1, "fc1.fc": 3 * 2, "fc2.fc": 1, "head": 1}


def test_channels_joined_by_a_skip_share_one_space() -> None:
    spaces = {layer.name: layer.outputs for layer in make("resnet-18").graph().layers}
    assert spaces["stem.conv"] == spaces["layer1.0.body.conv2"] == spaces["layer1.1.body.conv2"]
    assert spaces["layer2.0.body.conv2"] == spaces["layer2.0.shortcut.conv"] == spaces["layer2.1.body.conv2"]
    assert spaces["layer2.0.body.conv1"] != spaces["layer2.0.body.conv2"]


def test_the_graph_follows_a_grown_head() -> None:
    network = make("mlp")
    network.grow_head(9)
    graph = network.graph()
    permuted = graph.permute(network.state_dict(), random_permutations(graph))
    assert permuted["head.weight"].shape == (9, 12)


def test_a_permutation_gives_new_neuron_i_the_old_neuron_at_order_i() -> None:
    network = make("mlp")
    state = network.state_dict()
    order = torch.arange(16).roll(1)
    permuted = network.graph().permute(state, {"fc1.fc": order})
    assert torch.equal(permuted["fc1.fc.bias"], state["fc1.fc.bias"][order])
    assert torch.equal(permuted["fc2.fc.weight"], state["fc2.fc.weight"][:, order])
    assert torch.equal(permuted["head.weight"], state["head.weight"])


def test_permuting_does_not_change_the_given_state() -> None:
    network = make("mlp")
    before = {key: value.clone() for key, value in network.state_dict().items()}
    state = network.state_dict()
    network.graph().permute(state, random_permutations(network.graph()))
    assert all(torch.equal(state[key], before[key]) for key in before)


def test_an_unknown_space_or_a_false_permutation_is_refused() -> None:
    network = make("mlp")
    with pytest.raises(UserError, match="Space 'fc9' is not known"):
        network.graph().permute(network.state_dict(), {"fc9": torch.arange(16)})
    with pytest.raises(ValueError, match="permutation of 16 neurons"):
        network.graph().permute(network.state_dict(), {"fc1.fc": torch.zeros(16, dtype=torch.long)})


def test_a_wire_to_a_module_without_neurons_is_refused() -> None:
    with pytest.raises(UserError, match="Layer '0' is a ReLU"):
        build_graph(nn.Sequential(nn.ReLU()), [Wire("0", None, None)])


def test_a_layer_that_no_wire_leads_to_is_named() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with pytest.raises(UserError, match=r"Layer '1' \(LayerNorm\) is not in the network's wires"):
        build_graph(network, [Wire("0", None, "0"), Wire("2", "0", None)])


def test_a_convolution_in_groups_is_named() -> None:
    with pytest.raises(UserError, match="Layer '0' is a convolution in groups"):
        build_graph(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), [Wire("0", None, None)])


def test_batch_norm_is_found_where_it_is() -> None:
    with_norm = {name for name in CASES if has_batch_norm(make(name))}
    assert with_norm == set(CASES) - {"simple-cnn", "vgg-9", "mlp"}
