from __future__ import annotations

import pytest
import torch
from torch import nn

from fedwild.core.errors import UserError
from fedwild.models import LayerGraph, has_batch_norm
from fedwild.models.graph import Wire, build_graph
from tests.models.cases import CASES, WITH_GRAPH, inputs, make, stir_norms


def random_permutations(graph: LayerGraph) -> dict[str, torch.Tensor]:
    """Return a random order for each space, never the identity, so that every tensor changes."""
    orders = {space: torch.randperm(width) for space, width in graph.spaces.items()}
    return {
        space: order.roll(1) if torch.equal(order, torch.arange(len(order))) else order
        for space, order in orders.items()
    }


@pytest.mark.parametrize("name", WITH_GRAPH)
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


@pytest.mark.parametrize("name", WITH_GRAPH)
def test_every_parameter_and_float_buffer_belongs_to_a_layer_of_the_graph(name: str) -> None:
    network = make(name)
    layers = {layer.name for layer in network.graph().layers}
    floats = {key for key, value in network.state_dict().items() if value.is_floating_point()}
    assert {key.rpartition(".")[0] for key in floats} == layers


@pytest.mark.parametrize("name", WITH_GRAPH)
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


def test_an_unknown_space_or_an_invalid_permutation_is_rejected() -> None:
    network = make("mlp")
    with pytest.raises(UserError, match="Space 'fc9' is not known"):
        network.graph().permute(network.state_dict(), {"fc9": torch.arange(16)})
    with pytest.raises(ValueError, match="permutation of 16 neurons"):
        network.graph().permute(network.state_dict(), {"fc1.fc": torch.zeros(16, dtype=torch.long)})


def random_plans(graph: LayerGraph) -> dict[str, torch.Tensor]:
    """Return a mixture of three permutations for each space: rows and columns sum to 1."""
    shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    plans = {}
    for space, width in graph.spaces.items():
        orders = torch.stack([torch.randperm(width) for _ in shares])
        plans[space] = torch.einsum("s,sij->ij", shares, torch.eye(width, dtype=torch.float64)[orders])
    return plans


@pytest.mark.parametrize("name", [name for name in WITH_GRAPH if name != "wrn-28-10"])
def test_a_permutation_matrix_gives_the_same_result_as_the_permutation(name: str) -> None:
    network = make(name)
    stir_norms(network)
    graph, state = network.graph(), network.state_dict()
    orders = random_permutations(graph)
    plans = {space: torch.eye(len(order))[order] for space, order in orders.items()}
    by_order, by_plan = graph.permute(state, orders), graph.permute(state, plans)
    assert by_order.keys() == by_plan.keys()
    assert all(torch.equal(by_order[key], by_plan[key]) for key in by_order)
    assert all(by_plan[key].dtype == state[key].dtype for key in state)


def test_a_plan_makes_each_neuron_a_weighted_mean_of_all_in_rows_folded_columns_and_channels() -> None:
    network = make("simple-cnn").double()
    graph, state = network.graph(), network.state_dict()
    plans = random_plans(graph)
    conv1, conv2, fc1, fc2 = (plans[space] for space in ("conv1.conv", "conv2.conv", "fc1.fc", "fc2.fc"))
    permuted = graph.permute(state, plans)
    # The flatten spreads a channel over 3 x 2 columns that lie side by side.
    spread = torch.kron(conv2, torch.eye(6))
    expected = {
        "conv1.conv.weight": torch.einsum("ia,abhw->ibhw", conv1, state["conv1.conv.weight"]),
        "conv1.conv.bias": conv1 @ state["conv1.conv.bias"],
        "conv2.conv.weight": torch.einsum("ia,jb,abhw->ijhw", conv2, conv1, state["conv2.conv.weight"]),
        "conv2.conv.bias": conv2 @ state["conv2.conv.bias"],
        "fc1.fc.weight": fc1 @ state["fc1.fc.weight"] @ spread.T,
        "fc1.fc.bias": fc1 @ state["fc1.fc.bias"],
        "fc2.fc.weight": fc2 @ state["fc2.fc.weight"] @ fc1.T,
        "fc2.fc.bias": fc2 @ state["fc2.fc.bias"],
        "head.weight": state["head.weight"] @ fc2.T,
        "head.bias": state["head.bias"],
    }
    assert permuted.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(permuted[key], value)


def test_a_plan_mixes_the_parameters_and_statistics_of_norms_but_not_their_counters() -> None:
    network = make("resnet-18")
    stir_norms(network)
    graph, state = network.graph(), network.state_dict()
    plans = random_plans(graph)
    permuted = graph.permute(state, plans)
    norms = [layer for layer in graph.layers if layer.kind == "norm"]
    for layer in norms:
        assert layer.outputs is not None
        plan = plans[layer.outputs].float()
        for key in ("weight", "bias", "running_mean", "running_var"):
            torch.testing.assert_close(permuted[f"{layer.name}.{key}"], plan @ state[f"{layer.name}.{key}"])
        counter = f"{layer.name}.num_batches_tracked"
        assert torch.equal(permuted[counter], state[counter])
    assert len(norms) == 20


def test_plans_and_permutations_can_be_combined() -> None:
    network = make("mlp")
    graph, state = network.graph(), network.state_dict()
    order, plan = torch.arange(16).roll(1), random_plans(graph)["fc2.fc"]
    permuted = graph.permute(state, {"fc1.fc": order, "fc2.fc": plan})
    expected = plan.float() @ state["fc2.fc.weight"][:, order]
    torch.testing.assert_close(permuted["fc2.fc.weight"], expected)


@pytest.mark.parametrize("shape", [(16, 12), (12, 12), (1, 16), (17, 17)])
def test_a_plan_of_another_shape_is_rejected(shape: tuple[int, int]) -> None:
    network = make("mlp")
    message = rf"Space 'fc1.fc' needs a plan of 16 x 16 neurons, not \[{shape[0]}, {shape[1]}\]"
    with pytest.raises(ValueError, match=message):
        network.graph().permute(network.state_dict(), {"fc1.fc": torch.zeros(shape)})


def test_tensors_that_are_missing_from_the_state_are_skipped() -> None:
    network = make("resnet-18")
    graph, state = network.graph(), network.state_dict()
    orders = random_permutations(graph)
    part = {key: value for key, value in state.items() if "norm" in key or key == "stem.conv.weight"}
    permuted, full = graph.permute(part, orders), graph.permute(state, orders)
    assert permuted.keys() == part.keys() and len(part) > 100
    assert all(torch.equal(permuted[key], full[key]) for key in part)


def test_a_wire_to_a_module_without_neurons_is_rejected() -> None:
    with pytest.raises(UserError, match="Layer '0' is a ReLU"):
        build_graph(nn.Sequential(nn.ReLU()), [Wire("0", None, None)])


def test_a_layer_without_a_wire_is_rejected_by_name() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with pytest.raises(UserError, match=r"Layer '1' \(LayerNorm\) is missing from the network's wires"):
        build_graph(network, [Wire("0", None, "0"), Wire("2", "0", None)])


def test_a_grouped_convolution_is_rejected_by_name() -> None:
    with pytest.raises(UserError, match="Layer '0' is a grouped convolution"):
        build_graph(nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), [Wire("0", None, None)])


def test_has_batch_norm_finds_batch_norm_layers() -> None:
    with_norm = {name for name in CASES if has_batch_norm(make(name))}
    assert with_norm == set(CASES) - {"simple-cnn", "vgg-9", "mlp", "word-lstm"}
