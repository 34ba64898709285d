"""Walking a layer graph: for every space of neurons the map that brings a model nearest to a target model.

Singh, Jaggi: Model fusion via optimal transport. NeurIPS 2020; as in FedPD's equations 11 and 12. The sweeps that
look at both sides of a neuron are those of Ainsworth, Hayase, Srinivasa: Git Re-Basin. ICLR 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce

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
    costs = Costs(source, target, maps)
    for space in graph.spaces:
        writers = [layer for layer in graph.weighted if layer.outputs == space]
        ready = [layer for layer in writers if layer.inputs is None or layer.inputs in maps]
        maps[space] = solve(sum_of(costs.written(layer) for layer in ready))
    for _ in range(sweeps):
        before = dict(maps)
        for space in graph.spaces:
            written = (costs.written(layer) for layer in graph.weighted if layer.outputs == space)
            read = (costs.read(layer) for layer in graph.weighted if layer.inputs == space)
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
    """Their sum, with one of them in memory at a time; none of them is changed."""
    return reduce(torch.add, costs)


class Costs:
    """What it costs to have neuron j of the source at place i, layer by layer, under maps that still change.

    A layer's costs depend on the map at its other end only, and are kept as long as that stays the same: while some
    layers find their order, the largest one need not be computed anew.
    """

    def __init__(self, source: Pieces, target: Pieces, maps: Mapping[str, Tensor]) -> None:
        self.source, self.target, self.maps = source, target, maps
        self._kept: dict[tuple[str, str], tuple[Tensor | None, Tensor]] = {}
        self._turned: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def written(self, layer: Layer) -> Tensor:
        """By the weights that lead to the neurons."""
        return self._current("written", layer, layer.inputs, _pairs(layer, self.source, self.target))

    def read(self, layer: Layer) -> Tensor:
        """By the weights that lead away from them."""
        return self._current("read", layer, layer.outputs, self._turned_pairs(layer))

    def _current(
        self, side: str, layer: Layer, other_end: str | None, pairs: Iterable[tuple[Tensor, Tensor]]
    ) -> Tensor:
        order = None if other_end is None else self.maps[other_end]
        known = self._kept.get((layer.name, side))
        if known is None or not _same(known[0], order):
            mapped = ((ours if order is None else with_inputs(layer, ours, order), theirs) for ours, theirs in pairs)
            known = order, sum_of(squared_distances(theirs.flatten(1), ours.flatten(1)) for ours, theirs in mapped)
            self._kept[layer.name, side] = known
        return known[1]

    def _turned_pairs(self, layer: Layer) -> Iterable[tuple[Tensor, Tensor]]:
        """The weights as if the layer were run backwards (inputs, outputs, ...): what it reads is what it writes."""
        if layer.name not in self._turned:
            assert layer.inputs is not None
            neurons = len(self.maps[layer.inputs])
            self._turned[layer.name] = [
                (_turned(ours, neurons), _turned(theirs, neurons))
                for ours, theirs in _pairs(layer, self.source, self.target)
            ]
        yield from self._turned[layer.name]


def _turned(weight: Tensor, neurons: int) -> Tensor:
    return weight.reshape(len(weight), neurons, -1).transpose(0, 1).contiguous()


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


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
