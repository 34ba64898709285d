from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, permutations

import pytest
import torch
from torch import Tensor

from fedwild.methods.fedpd import matching
from fedwild.methods.fedpd.matching import (
    match_layers,
    moved_share,
    squared_distances,
)
from fedwild.models import LayerGraph, Network, build
from tests.models.cases import inputs, make, stir_norms

NETWORKS = ("mlp", "simple-cnn", "digit-cnn", "vgg-9", "resnet-18", "resnet-50", "wrn-16-4")
SMALL = ("mlp", "simple-cnn", "resnet-18", "resnet-50")

State = dict[str, Tensor]


def model(name: str, seed: int = 0) -> tuple[Network, State]:
    """A network whose neurons all differ, including their batch-norm parameters and statistics."""
    network = make(name).eval()
    torch.manual_seed(seed)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.5)
    stir_norms(network)
    return network, {key: value.clone() for key, value in network.state_dict().items()}


def random_orders(graph: LayerGraph, seed: int = 0) -> State:
    draws = torch.Generator().manual_seed(seed)
    return {space: torch.randperm(width, generator=draws) for space, width in graph.spaces.items()}


def random_masks(graph: LayerGraph, state: State, share: float, seed: int) -> State:
    draws = torch.Generator().manual_seed(seed)
    keys = [f"{layer.name}.weight" for layer in graph.weighted]
    return {key: torch.rand(state[key].shape, generator=draws) < share for key in keys}


def logits(network: Network, state: Mapping[str, Tensor]) -> Tensor:
    network.load_state_dict(state)
    with torch.no_grad():
        return network(inputs(network))


def doubles(state: Mapping[str, Tensor]) -> State:
    return {key: value.double() if value.is_floating_point() else value for key, value in state.items()}


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_model_aligned_to_a_permuted_copy_of_itself_becomes_the_copy(name: str) -> None:
    network, state = model(name)
    graph = network.graph()
    copy = graph.permute(state, random_orders(graph))
    aligned = graph.permute(state, match_layers(graph, state, copy))
    before = logits(network, state)
    assert before.std() > 1e-2
    torch.testing.assert_close(logits(network, aligned), before, rtol=1e-4, atol=1e-4)
    assert same(aligned, copy)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_permutation_is_found_under_noise(name: str) -> None:
    network, state = model(name)
    graph, orders = network.graph(), random_orders(network.graph())
    copy = graph.permute(state, orders)
    torch.manual_seed(1)
    noisy = {key: value + 1e-3 * torch.randn(value.shape) for key, value in copy.items()}
    assert same(match_layers(graph, state, noisy), orders)


@pytest.mark.parametrize("sweeps", [0, 2])
@pytest.mark.parametrize("name", ["mlp", "simple-cnn", "digit-cnn", "resnet-18", "wrn-16-4"])
def test_the_permutation_is_found_from_masked_weights(name: str, sweeps: int) -> None:
    network, state = model(name)
    graph, orders = network.graph(), random_orders(network.graph())
    masks = random_masks(graph, state, 0.5, seed=1)
    copy, copied_masks = graph.permute(state, orders), graph.permute(masks, orders)
    ours = {key: state[key] * mask for key, mask in masks.items()}
    theirs = {key: copy[key] * mask for key, mask in copied_masks.items()}
    assert same(match_layers(graph, ours, theirs, sweeps=sweeps), orders)


def test_models_without_weights_keep_their_order() -> None:
    network, state = model("mlp")
    blank = {key: torch.zeros_like(value) for key, value in state.items()}
    assert moved_share(match_layers(network.graph(), blank, blank)) == 0


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (30, 200)])
def test_costs_by_one_matrix_product_are_the_squared_distances_of_rows(shape: tuple[int, int]) -> None:
    draws = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=draws, dtype=torch.float64) for _ in range(2))
    naive = (a[:, None] - b[None]).square().sum(dim=2)
    before = a.clone(), b.clone()
    torch.testing.assert_close(squared_distances(a, b), naive, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(squared_distances(a.float(), b.float()), naive.float(), rtol=1e-5, atol=1e-5)
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])


def distance(graph: LayerGraph, source: State, target: State, maps: State) -> float:
    """Return the squared distance of all weights between the target and the source reordered by the maps."""
    permuted = graph.permute(source, maps)
    keys = [f"{layer.name}.weight" for layer in graph.weighted]
    return sum(float((permuted[key] - target[key]).square().sum()) for key in keys)


@pytest.mark.parametrize("name", SMALL)
def test_no_sweep_increases_the_distance_of_different_models(name: str) -> None:
    network, state = model(name)
    _, other = model(name, seed=1)
    graph, source, target = network.graph(), doubles(state), doubles(other)
    stay = {space: torch.arange(width) for space, width in graph.spaces.items()}
    distances = [distance(graph, source, target, stay)]
    distances += [
        distance(graph, source, target, match_layers(graph, source, target, sweeps=sweeps))
        for sweeps in (0, 1, 2, 3, 12)
    ]
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(distances))
    assert distances[-1] < distances[2] < distances[1] < distances[0]


@pytest.mark.parametrize("seed", range(4))
def test_a_sweep_finds_the_best_order_of_each_space_in_turn(seed: int) -> None:
    """Compared with trying every permutation of one space while the others keep theirs."""
    network = build("mlp", (3,), 6, True, {"hidden": [5, 4, 5]})
    graph, draws = network.graph(), torch.Generator().manual_seed(seed)
    source, target = (
        {key: torch.randn(value.shape, generator=draws).double() for key, value in network.state_dict().items()}
        for _ in range(2)
    )

    def best(space: str, maps: State) -> Tensor:
        orders = [torch.tensor(order) for order in permutations(range(graph.spaces[space]))]
        return min(orders, key=lambda order: distance(graph, source, target, {**maps, space: order}))

    first = maps = match_layers(graph, source, target)
    for sweeps in (1, 2, 3):
        for space in graph.spaces:
            maps = {**maps, space: best(space, maps)}
        assert same(match_layers(graph, source, target, sweeps=sweeps), maps)
    assert not same(maps, first)


def test_layers_are_computed_again_only_if_the_map_at_their_other_end_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network, state = model("mlp")
    copy = network.graph().permute(state, random_orders(network.graph()))
    computed: list[tuple[int, ...]] = []

    def costs(places: Tensor, neurons: Tensor) -> Tensor:
        computed.append(tuple(places.shape))
        return squared_distances(places, neurons)

    monkeypatch.setattr(matching, "squared_distances", costs)
    match_layers(network.graph(), state, copy, sweeps=5)
    # Incoming costs are cached from the first pass; the sweep adds the outgoing ones.
    assert computed == [(16, 20), (12, 16), (16, 12), (12, 5)]


def test_sweeps_end_early_when_no_map_changes() -> None:
    network, state = model("mlp")
    copy = network.graph().permute(state, random_orders(network.graph()))
    solved: list[int] = []

    def solve(costs: Tensor) -> Tensor:
        solved.append(len(costs))
        return costs.argmin(dim=1)

    match_layers(network.graph(), state, copy, solve, sweeps=50)
    assert solved == [16, 12] * 2


FIRST = {"mlp": "fc1.fc", "simple-cnn": "conv1.conv", "resnet-18": "stem.conv"}


@pytest.mark.parametrize(("name", "first"), FIRST.items())
def test_a_sweep_distinguishes_neurons_that_differ_only_in_their_outgoing_weights(name: str, first: str) -> None:
    """The incoming weights of two neurons are equal, so the first pass cannot detect that they changed places."""
    network, state = model(name)
    graph = network.graph()
    state[f"{first}.weight"][1] = state[f"{first}.weight"][0]
    space = next(layer.outputs for layer in graph.layers if layer.name == first)
    assert space is not None
    swap = torch.arange(graph.spaces[space])
    swap[:2] = torch.tensor([1, 0])
    copy = graph.permute(state, {space: swap})
    assert moved_share(match_layers(graph, state, copy)) == 0
    maps = match_layers(graph, state, copy, sweeps=2)
    assert torch.equal(maps[space], swap)
    assert same(graph.permute(state, maps), copy)


@pytest.mark.parametrize("name", ["mlp", "resnet-18"])
def test_classes_keep_their_order(name: str) -> None:
    network, state = model(name)
    graph = network.graph()
    turned = dict(state)
    for key in ("head.weight", "head.bias"):
        turned[key] = state[key].roll(1, dims=0)
    maps = match_layers(graph, turned, state, sweeps=3)
    assert maps.keys() == graph.spaces.keys()
    assert same(graph.permute(turned, maps), turned)
    assert not torch.equal(turned["head.weight"], state["head.weight"])


def test_joined_channels_are_matched_once_for_all_layers_that_write_them() -> None:
    """Channels that are equal in the stem are distinguished by the blocks that write and read them."""
    network, state = model("resnet-18")
    graph, orders = network.graph(), random_orders(network.graph())
    state["stem.conv.weight"][:] = state["stem.conv.weight"][:1]
    copy = graph.permute(state, orders)
    assert not same(match_layers(graph, state, copy), orders)
    assert same(match_layers(graph, state, copy, sweeps=12), orders)


def test_moved_is_the_share_of_neurons_or_of_mass_that_changes_place() -> None:
    swapped, still = torch.tensor([1, 0, 2]), torch.tensor([0])
    plan = torch.tensor([[0.75, 0.25], [0.5, 0.5]])
    assert moved_share({"a": swapped, "b": still}) == 0.5
    assert moved_share({"a": plan}) == pytest.approx(0.375)
    assert moved_share({"a": swapped, "b": still, "c": plan}) == pytest.approx(2.75 / 6)
    assert moved_share({"a": torch.eye(3)}) == moved_share({}) == 0.0


def test_plans_of_a_solver_reach_the_layers_that_read_the_neurons() -> None:
    """The mean over all neurons at every place: the second layer's costs are those of its mean column."""
    network, state = model("mlp")
    _, other = model("mlp", seed=1)
    state, other = doubles(state), doubles(other)
    seen: list[Tensor] = []

    def mean(costs: Tensor) -> Tensor:
        seen.append(costs.clone())
        return torch.full_like(costs, 1 / len(costs))

    match_layers(network.graph(), state, other, mean)
    columns = state["fc2.fc.weight"].mean(dim=1, keepdim=True).expand(-1, 16)
    naive = (other["fc2.fc.weight"][:, None] - columns[None]).square().sum(dim=2)
    torch.testing.assert_close(seen[1], naive)


@pytest.mark.parametrize("hidden", [[16, 10], [10, 12]])
def test_models_of_other_widths_are_rejected_in_one_sentence(hidden: list[int]) -> None:
    network, state = model("mlp")
    other = build("mlp", (20,), 5, True, {"hidden": hidden}).state_dict()
    with pytest.raises(ValueError, match=r"^Only models of one architecture can be matched: 'fc\d.fc.weight' has the"):
        match_layers(network.graph(), state, other)
