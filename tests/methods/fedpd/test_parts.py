from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedwild.methods.fedpd.matching import match_layers
from fedwild.methods.fedpd.parts import (
    Aligned,
    Alignment,
    Disentangled,
    Rest,
    align_three,
    align_two,
    align_whole,
    keep_order,
)
from fedwild.methods.fedpd.solvers import solve_assignment
from fedwild.models import LayerGraph, build
from fedwild.models.graph import Wire, build_graph
from tests.models.cases import make, stir_norms

BY_PARTS = {"three": align_three, "two": align_two}
by_parts = pytest.mark.parametrize("align", BY_PARTS.values(), ids=BY_PARTS)
rests = pytest.mark.parametrize("rest", ["kept", "zero"])
networks = pytest.mark.parametrize("name", ["mlp", "simple-cnn", "digit-cnn", "resnet-18"])

State = dict[str, Tensor]
Align = Callable[[Alignment, Disentangled, Disentangled, Rest], Aligned]
Arrays = dict[str, np.ndarray]
Orders = tuple[tuple[int, ...], tuple[int, ...]]
Naive = Callable[[Disentangled, Disentangled, Rest], tuple[Arrays, list[Orders]]]


def random_masks(graph: LayerGraph, state: Mapping[str, Tensor], seed: int, share: float = 0.5) -> State:
    draws = torch.Generator().manual_seed(seed)
    keys = [f"{layer.name}.weight" for layer in graph.weighted]
    return {key: torch.rand(state[key].shape, generator=draws) < share for key in keys}


def client(name: str, seed: int = 0) -> tuple[LayerGraph, Disentangled]:
    """A network with weights, norms and subnetworks from a seed."""
    network = make(name)
    torch.manual_seed(seed)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    stir_norms(network)
    graph, state = network.graph(), {key: value.clone() for key, value in network.state_dict().items()}
    return graph, Disentangled(state, random_masks(graph, state, seed), random_masks(graph, state, seed + 100))


def permuted(graph: LayerGraph, model: Disentangled, seed: int = 0) -> Disentangled:
    """A copy with its neurons and their masks in another order."""
    draws = torch.Generator().manual_seed(seed)
    orders = {space: torch.randperm(width, generator=draws) for space, width in graph.spaces.items()}
    return Disentangled(*(graph.permute(tensors, orders) for tensors in (model.state, model.close, model.open)))


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


# --- equal models ------------------------------------------------------------------------------------------


@by_parts
@networks
def test_a_client_equal_to_the_target_does_not_change_bit_by_bit(name: str, align: Align) -> None:
    graph, model = client(name)
    _, target = client(name)
    result = align(Alignment(graph, solve_assignment), model, target, "kept")
    assert same(result.state, model.state)
    assert set(result.moved.values()) == {0.0}


@networks
def test_a_client_equal_to_the_target_does_not_change_when_aligned_whole_or_not_at_all(name: str) -> None:
    graph, model = client(name)
    result = align_whole(Alignment(graph, solve_assignment, sweeps=3), model.state, model.state)
    assert same(result.state, model.state) and result.moved == {"whole": 0.0}
    assert same(keep_order(model, "kept").state, model.state)


@by_parts
def test_a_client_with_equal_neurons_that_equals_the_target_does_not_change(align: Align) -> None:
    """Equal neurons are interchangeable, but the layers that read them distinguish them."""
    graph, model = client("mlp")
    for tensors in (model.state, model.close, model.open):
        tensors["fc1.fc.weight"][:8] = tensors["fc1.fc.weight"][8:]
        tensors["fc2.fc.weight"][:] = tensors["fc2.fc.weight"][:1]
    assert same(align(Alignment(graph, solve_assignment), model, model, "kept").state, model.state)


@by_parts
@networks
def test_a_client_aligned_to_a_copy_with_its_masks_permuted_along_becomes_the_copy(name: str, align: Align) -> None:
    graph, model = client(name)
    copy = permuted(graph, model)
    result = align(Alignment(graph, solve_assignment), model, copy, "kept")
    assert same(result.state, copy.state)
    assert min(result.moved.values()) > 0.5


@by_parts
@rests
def test_aligning_changes_neither_the_client_nor_the_target(align: Align, rest: Rest) -> None:
    graph, model = client("resnet-18")
    _, target = client("resnet-18", seed=1)
    first = align(Alignment(graph, solve_assignment), model, target, rest)
    before = {key: value.clone() for key, value in first.state.items()}
    again = align(Alignment(graph, solve_assignment), model, target, rest)
    fresh = align(Alignment(graph, solve_assignment), client("resnet-18")[1], client("resnet-18", seed=1)[1], rest)
    assert same(first.state, before) and same(again.state, before) and same(fresh.state, before)
    assert same(model.state, client("resnet-18")[1].state) and same(target.state, client("resnet-18", seed=1)[1].state)


# --- what the parts are ------------------------------------------------------------------------------------


def test_the_parts_of_a_model_add_up_to_its_weights_and_do_not_overlap() -> None:
    graph, model = client("simple-cnn")
    parts = [model.masked(model.part(part)) for part in ("close", "open", "share", "rest")]
    for key in (f"{layer.name}.weight" for layer in graph.weighted):
        weights = torch.stack([part[key] for part in parts])
        assert torch.equal(weights.sum(dim=0), model.state[key])
        assert torch.equal((weights != 0).sum(dim=0), torch.ones(model.state[key].shape, dtype=torch.long))
    assert same(model.three["open"], parts[1])
    assert all(torch.equal(model.two["close"][key], parts[0][key] + parts[2][key]) for key in model.close)


@by_parts
def test_rest_zero_drops_exactly_the_weights_in_neither_subnetwork(align: Align) -> None:
    graph, model = client("digit-cnn")
    result = align(Alignment(graph, solve_assignment), model, model, "zero")
    expected = {
        key: value * (model.close[key] | model.open[key]) if key in model.close else value
        for key, value in model.state.items()
    }
    assert same(result.state, expected)
    assert same(keep_order(model, "zero").state, expected)
    assert not same(expected, model.state)


@by_parts
@rests
@pytest.mark.parametrize("name", ["mlp", "resnet-18"])
def test_biases_norms_and_statistics_follow_the_map_of_the_whole_model(name: str, align: Align, rest: Rest) -> None:
    graph, model = client(name)
    _, target = client(name, seed=1)
    result = align(Alignment(graph, solve_assignment), model, target, rest)
    by_whole = graph.permute(model.state, match_layers(graph, model.state, target.state))
    shared = model.masked(model.part("share")), target.masked(target.part("share"))
    by_part = graph.permute(model.state, match_layers(graph, shared[0], shared[1]))
    keys = model.state.keys() - model.close.keys()
    assert keys == {key for key, value in model.state.items() if value.dim() < 2}
    assert all(torch.equal(result.state[key], by_whole[key]) for key in keys)
    assert any(not torch.equal(by_part[key], by_whole[key]) for key in keys)


def test_align_whole_returns_the_maps_that_it_used() -> None:
    graph, model = client("simple-cnn")
    _, target = client("simple-cnn", seed=1)
    result = align_whole(Alignment(graph, solve_assignment, sweeps=1), model.state, target.state)
    assert same(result.maps, match_layers(graph, model.state, target.state, sweeps=1))
    assert same(result.state, graph.permute(model.state, result.maps))
    assert 0 < result.moved["whole"] <= 1


def test_the_given_solver_and_number_of_sweeps_are_used() -> None:
    graph, model = client("mlp")
    _, target = client("mlp", seed=1)
    solved: list[int] = []

    def solve(costs: Tensor) -> Tensor:
        solved.append(len(costs))
        return torch.arange(len(costs)).roll(len(solved))

    result = align_three(Alignment(graph, solve, sweeps=1), model, target, "kept")
    # Two spaces, a first pass and a sweep, for the whole model and three parts.
    assert solved == [16, 12] * 2 * 4
    assert set(result.moved) == {"whole", "close", "open", "share"}


# --- by hand -----------------------------------------------------------------------------------------------


def two_neurons(first: list[list[float]], bias: list[float], head: list[list[float]]) -> Disentangled:
    """A network of four inputs, two neurons and two classes.

    Inputs 0 to 3 are close-only, open-only, shared and in neither; class 0 is close-only, class 1 is shared.
    """
    state = {
        "fc1.fc.weight": torch.tensor(first, dtype=torch.float64),
        "fc1.fc.bias": torch.tensor(bias, dtype=torch.float64),
        "head.weight": torch.tensor(head, dtype=torch.float64),
    }
    close = {
        "fc1.fc.weight": torch.tensor([[True, False, True, False]] * 2),
        "head.weight": torch.tensor([[True] * 2] * 2),
    }
    open_ = {
        "fc1.fc.weight": torch.tensor([[False, True, True, False]] * 2),
        "head.weight": torch.tensor([[False] * 2, [True] * 2]),
    }
    return Disentangled(state, close, open_)


GRAPH = build("mlp", (4,), 2, False, {"hidden": [2]}).graph()
TARGET = two_neurons([[1, 0, 3, 7], [2, 8, 4, 5]], [0, 0], [[0, 0], [0, 0]])
# By the whole model, input 1 keeps the neurons in place. By inputs 0 or 2 alone, the neurons are swapped.
MODEL = two_neurons([[2, 0, 4, 7], [1, 8, 3, 5]], [10, 20], [[100, 200], [300, 400]])


@rests
def test_three_parts_by_hand(rest: Rest) -> None:
    result = align_three(Alignment(GRAPH, solve_assignment), MODEL, TARGET, rest)
    assert result.moved == {"whole": 0.0, "close": 1.0, "open": 0.0, "share": 1.0}
    # Weights in neither subnetwork follow the shared part.
    kept = [5, 7] if rest == "kept" else [0, 0]
    assert result.state["fc1.fc.weight"].tolist() == [[1, 0, 3, kept[0]], [2, 8, 4, kept[1]]]
    assert result.state["fc1.fc.bias"].tolist() == [10, 20]
    assert result.state["head.weight"].tolist() == [[200, 100], [400, 300]]


@rests
def test_two_subnetworks_by_hand(rest: Rest) -> None:
    result = align_two(Alignment(GRAPH, solve_assignment), MODEL, TARGET, rest)
    assert result.moved == {"whole": 0.0, "close": 1.0, "open": 0.0}
    # Weights in neither follow the whole model. Of weights in both, one copy is swapped and the other is not.
    kept = [7, 5] if rest == "kept" else [0, 0]
    assert result.state["fc1.fc.weight"].tolist() == [[1, 0, 3.5, kept[0]], [2, 8, 3.5, kept[1]]]
    assert result.state["fc1.fc.bias"].tolist() == [10, 20]
    assert result.state["head.weight"].tolist() == [[200, 100], [350, 350]]


@by_parts
def test_a_plan_that_spreads_all_neurons_evenly_gives_their_mean_in_every_part(align: Align) -> None:
    alignment = Alignment(GRAPH, lambda costs: torch.full_like(costs, 1 / len(costs)))
    result = align(alignment, MODEL, TARGET, "kept")
    assert set(result.moved.values()) == {0.5}
    assert result.state["fc1.fc.weight"].tolist() == [[1.5, 4, 3.5, 6]] * 2
    assert result.state["fc1.fc.bias"].tolist() == [15, 15]
    assert result.state["head.weight"].tolist() == [[150, 150], [350, 350]]


# --- against a naive implementation ------------------------------------------------------------------------

NEURONS, POSITIONS = 4, 2


def two_convolutions() -> nn.Sequential:
    layers = {
        "first": nn.Conv2d(6, NEURONS, 3),
        "second": nn.Conv2d(NEURONS, NEURONS, 3),
        "head": nn.Linear(NEURONS * POSITIONS, 3),
    }
    return nn.Sequential(OrderedDict(layers))


WIRES = (Wire("first", None, "first"), Wire("second", "first", "second"), Wire("head", "second", None))


def naive_maps(ours: Arrays, theirs: Arrays) -> Orders:
    """Layer by layer, by trying every permutation of the neurons."""

    def far(target: np.ndarray, source: np.ndarray, order: tuple[int, ...]) -> float:
        return sum(float(np.sum((target[place] - source[neuron]) ** 2)) for place, neuron in enumerate(order))

    def nearest(target: np.ndarray, source: np.ndarray) -> tuple[int, ...]:
        return min(permutations(range(NEURONS)), key=lambda order: far(target, source, order))

    first = nearest(theirs["first.weight"], ours["first.weight"])
    return first, nearest(theirs["second.weight"], ours["second.weight"][:, list(first)])


def naive_move(tensors: Arrays, maps: Orders) -> Arrays:
    """Weight by weight: where it comes from, and where it goes."""
    moved = {key: np.zeros_like(value) for key, value in tensors.items()}
    for place, neuron in enumerate(maps[0]):
        moved["first.weight"][place] = tensors["first.weight"][neuron]
        for other_place, other in enumerate(maps[1]):
            moved["second.weight"][other_place, place] = tensors["second.weight"][other, neuron]
    for place, neuron in enumerate(maps[1]):
        for position in range(POSITIONS):
            column, old = place * POSITIONS + position, neuron * POSITIONS + position
            moved["head.weight"][:, column] = tensors["head.weight"][:, old]
    return moved


def as_arrays(tensors: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Arrays:
    return {key: tensors[key].double().numpy() for key in like}


def naive_three(model: Disentangled, target: Disentangled, rest: Rest) -> tuple[Arrays, list[Orders]]:
    weights, close, open_ = (as_arrays(t, model.close) for t in (model.state, model.close, model.open))
    others, other_close, other_open = (as_arrays(t, model.close) for t in (target.state, target.close, target.open))
    total = {key: np.zeros_like(value) for key, value in weights.items()}
    found = []
    for in_close, in_open in ((1, 0), (0, 1), (1, 1)):
        ours = {key: weights[key] * (close[key] == in_close) * (open_[key] == in_open) for key in weights}
        theirs = {key: others[key] * (other_close[key] == in_close) * (other_open[key] == in_open) for key in weights}
        found.append(naive_maps(ours, theirs))
        for key, value in naive_move(ours, found[-1]).items():
            total[key] += value
    if rest == "kept":
        left = {key: weights[key] * (1 - close[key]) * (1 - open_[key]) for key in weights}
        for key, value in naive_move(left, found[-1]).items():
            total[key] += value
    return total, found


def naive_two(model: Disentangled, target: Disentangled, rest: Rest) -> tuple[Arrays, list[Orders]]:
    weights, close, open_ = (as_arrays(t, model.close) for t in (model.state, model.close, model.open))
    others, other_close, other_open = (as_arrays(t, model.close) for t in (target.state, target.close, target.open))
    pairs = [(close, other_close), (open_, other_open)]
    found = [
        naive_maps({key: weights[key] * a[key] for key in weights}, {key: others[key] * b[key] for key in weights})
        for a, b in pairs
    ]
    moves = list(zip((close, open_), found, strict=True))
    if rest == "kept":
        moves.append(({key: (1 - close[key]) * (1 - open_[key]) for key in weights}, naive_maps(weights, others)))
    values = [naive_move({key: weights[key] * mask[key] for key in weights}, maps) for mask, maps in moves]
    counts = [naive_move(mask, maps) for mask, maps in moves]
    total = {}
    for key in weights:
        count = sum(c[key] for c in counts)
        total[key] = np.where(count > 0, sum(v[key] for v in values) / np.maximum(count, 1), 0)
    return total, found


def small(seed: int) -> Disentangled:
    draws = torch.Generator().manual_seed(seed)
    state = {
        key: torch.randn(value.shape, generator=draws, dtype=torch.float64)
        for key, value in two_convolutions().state_dict().items()
    }
    graph = build_graph(two_convolutions(), WIRES)
    return Disentangled(state, random_masks(graph, state, seed), random_masks(graph, state, seed + 100))


@rests
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("align", "naive"), [(align_three, naive_three), (align_two, naive_two)], ids=BY_PARTS)
def test_aligned_parts_are_those_of_a_naive_implementation(align: Align, naive: Naive, seed: int, rest: Rest) -> None:
    graph = build_graph(two_convolutions(), WIRES)
    model, target = small(2 * seed), small(2 * seed + 1)
    expected, maps = naive(model, target, rest)
    result = align(Alignment(graph, solve_assignment), model, target, rest).state
    assert len(set(maps)) == len(maps)
    for key, value in expected.items():
        torch.testing.assert_close(result[key], torch.from_numpy(value), rtol=0, atol=1e-12)
    first, second = naive_maps(*(as_arrays(m.state, m.close) for m in (model, target)))
    assert torch.equal(result["first.bias"], model.state["first.bias"][list(first)])
    assert torch.equal(result["second.bias"], model.state["second.bias"][list(second)])
    assert torch.equal(result["head.bias"], model.state["head.bias"])
