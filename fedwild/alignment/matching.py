"""Walking a layer graph: for every space of neurons the map that brings a model nearest to a target model.

Singh, Jaggi: Model fusion via optimal transport. NeurIPS 2020; as in FedPD's equations 11 and 12. The sweeps that
look at both sides of a neuron are those of Ainsworth, Hayase, Srinivasa: Git Re-Basin. ICLR 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedwild.alignment.solvers import Solver, assignment
from fedwild.models.graph import Layer, LayerGraph, reordered, with_inputs

Pieces = Callable[[str], Sequence[Tensor]]
"""By the name of a weight, one tensor for each part of a model that is to be matched: masked weights, or all."""


def whole(state: Mapping[str, Tensor]) -> Pieces:
    """A model in one piece."""
    return lambda name: (state[name],)


def match(
    graph: LayerGraph, source: Pieces, target: Pieces, solve: Solver = assignment, sweeps: int = 0
) -> dict[str, Tensor]:
    """One map for each space; `graph.permute(source, maps)` is nearest to the target.

    First layer by layer: the inputs of a layer are reordered by the maps found before (Eq. 11), then its outputs are
    matched (Eq. 12). Of layers joined by a skip connection, which share a map, those count whose inputs are mapped by
    then. Each of the `sweeps` after that goes through all spaces again and lets every layer that writes or reads them
    count; with permutations it can only bring the models nearer. With several pieces, costs add up.
    """
    maps: dict[str, Tensor] = {}
    for space in graph.spaces:
        writers = [layer for layer in graph.weighted if layer.outputs == space]
        ready = [layer for layer in writers if layer.inputs is None or layer.inputs in maps]
        maps[space] = solve(sum_of(_written(layer, source, target, maps) for layer in ready))
    for _ in range(sweeps):
        before = dict(maps)
        for space in graph.spaces:
            written = (_written(layer, source, target, maps) for layer in graph.weighted if layer.outputs == space)
            read = (_read(layer, source, target, maps) for layer in graph.weighted if layer.inputs == space)
            maps[space] = solve(sum_of((*written, *read)))
        if all(torch.equal(maps[space], before[space]) for space in maps):
            break
    return maps


def distance(graph: LayerGraph, source: Pieces, target: Pieces, maps: Mapping[str, Tensor]) -> float:
    """The squared distance of all weights between the target and the source as the maps reorder it."""
    total = 0.0
    for layer in graph.weighted:
        for ours, theirs in _pairs(layer, source, target):
            total += float((_rows(layer, _columns(layer, ours, maps), maps) - theirs).double().square().sum())
    return total


def moved(maps: Mapping[str, Tensor]) -> float:
    """The share of neurons that do not stay where they are; of a plan, the mass that moves."""
    stay = sum(float(_stay(order)) for order in maps.values())
    neurons = sum(len(order) for order in maps.values())
    return 1 - stay / neurons if neurons else 0.0


def squared_distances(places: Tensor, neurons: Tensor) -> Tensor:
    """|a_i - b_j|^2 (n, n) of rows a (n, d) and b (n, d), by one matrix product."""
    # A norm, unlike a sum of squares, needs no second tensor of that size.
    own, other = (torch.linalg.vector_norm(rows, dim=1).square() for rows in (places, neurons))
    return (places @ neurons.T).mul_(-2).add_(own[:, None]).add_(other)


def sum_of(costs: Iterable[Tensor]) -> Tensor:
    """Their sum, with one of them in memory at a time."""
    costs = iter(costs)
    total = next(costs)
    for cost in costs:
        total += cost
    return total


def _written(layer: Layer, source: Pieces, target: Pieces, maps: Mapping[str, Tensor]) -> Tensor:
    """What it costs to have neuron j of the source at place i, by the weights that lead to them."""
    return sum_of(
        squared_distances(theirs.flatten(1), _columns(layer, ours, maps).flatten(1))
        for ours, theirs in _pairs(layer, source, target)
    )


def _read(layer: Layer, source: Pieces, target: Pieces, maps: Mapping[str, Tensor]) -> Tensor:
    """The same by the weights that lead away from them."""
    assert layer.inputs is not None
    neurons = len(maps[layer.inputs])

    def by_input(weight: Tensor) -> Tensor:
        return weight.reshape(len(weight), neurons, -1).transpose(0, 1).flatten(1)

    return sum_of(
        squared_distances(by_input(theirs), by_input(_rows(layer, ours, maps)))
        for ours, theirs in _pairs(layer, source, target)
    )


def _pairs(layer: Layer, source: Pieces, target: Pieces) -> Iterable[tuple[Tensor, Tensor]]:
    name = f"{layer.name}.weight"
    for ours, theirs in zip(source(name), target(name), strict=True):
        if ours.shape != theirs.shape:
            shapes = f"{list(ours.shape)} and {list(theirs.shape)}"
            raise ValueError(f"Only models of one architecture can be matched: {name!r} has the shapes {shapes}.")
        yield ours, theirs


def _columns(layer: Layer, weight: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
    return weight if layer.inputs is None else with_inputs(layer, weight, maps[layer.inputs])


def _rows(layer: Layer, weight: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
    return weight if layer.outputs is None else reordered(weight, maps[layer.outputs])


def _stay(order: Tensor) -> Tensor:
    return order.diagonal().sum() if order.dim() == 2 else (order == torch.arange(len(order))).sum()
