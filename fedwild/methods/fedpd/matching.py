"""Matching along a layer graph: for every space of neurons, the map that brings a model closest to a target model.

Singh, Jaggi: Model fusion via optimal transport. NeurIPS 2020; as in FedPD's equations 11 and 12. The sweeps that
consider both sides of a neuron are those of Ainsworth, Hayase, Srinivasa: Git Re-Basin. ICLR 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from fedwild.methods.fedpd.solvers import Solver, solve_assignment
from fedwild.models.graph import Layer, LayerGraph, reorder, reorder_inputs

Pieces = Callable[[str], Sequence[Tensor]]
"""Returns, by the name of a weight, one tensor for each piece of a model that is matched: masked or whole weights."""


def one_piece(state: Mapping[str, Tensor]) -> Pieces:
    """Return a whole model as a single piece."""
    return lambda name: (state[name],)


def match_layers(
    graph: LayerGraph, source: Pieces, target: Pieces, solve: Solver = solve_assignment, sweeps: int = 0
) -> dict[str, Tensor]:
    """Return one map per space such that `graph.permute(source, maps)` is close to the target.

    The first pass goes layer by layer: the inputs of a layer are reordered by the maps found before (Eq. 11), then its
    outputs are matched (Eq. 12). Layers joined by a skip connection share a map; those whose inputs are mapped already
    determine it. Each of the `sweeps` that follow goes through all spaces again and uses every layer that writes or
    reads them. With permutations, a sweep never increases the distance. With several pieces, costs are summed.
    """
    maps: dict[str, Tensor] = {}
    costs = Costs(source, target, maps)
    for space in graph.spaces:
        writers = [layer for layer in graph.weighted if layer.outputs == space]
        ready = [layer for layer in writers if layer.inputs is None or layer.inputs in maps]
        maps[space] = solve(add_costs(costs.incoming(layer) for layer in ready))
    for _ in range(sweeps):
        before = dict(maps)
        for space in graph.spaces:
            incoming = (costs.incoming(layer) for layer in graph.weighted if layer.outputs == space)
            outgoing = (costs.outgoing(layer) for layer in graph.weighted if layer.inputs == space)
            maps[space] = solve(add_costs((*incoming, *outgoing)))
        if all(torch.equal(maps[space], before[space]) for space in maps):
            break
    return maps


def squared_distance(graph: LayerGraph, source: Pieces, target: Pieces, maps: Mapping[str, Tensor]) -> float:
    """Return the squared distance of all weights between the target and the source reordered by the maps."""
    total = 0.0
    for layer in graph.weighted:
        for ours, theirs in _pairs(layer, source, target):
            total += float((_map_rows(layer, _map_columns(layer, ours, maps), maps) - theirs).double().square().sum())
    return total


def moved_share(maps: Mapping[str, Tensor]) -> float:
    """Return the share of neurons that change their place, or of the mass that moves if maps are plans."""
    stay = sum(float(_unmoved(order)) for order in maps.values())
    neurons = sum(len(order) for order in maps.values())
    return 1 - stay / neurons if neurons else 0.0


def squared_distances(places: Tensor, neurons: Tensor) -> Tensor:
    """Return |a_i - b_j|^2 (n, n) of rows a (n, d) and b (n, d), by one matrix product."""
    # Unlike a sum of squares, a norm needs no second tensor of that size.
    own, other = (torch.linalg.vector_norm(rows, dim=1).square() for rows in (places, neurons))
    return (places @ neurons.T).mul_(-2).add_(own[:, None]).add_(other)


def add_costs(costs: Iterable[Tensor]) -> Tensor:
    """Return the sum of cost matrices, with one of them in memory at a time. None of them is changed."""
    return reduce(torch.add, costs)


class Costs:
    """Costs (n, n) of placing neuron j of the source at place i, layer by layer, under maps that still change.

    A layer's costs depend only on the map at its other end. They are cached until that map changes, so that the largest
    layers are not computed again while the others settle.
    """

    def __init__(self, source: Pieces, target: Pieces, maps: Mapping[str, Tensor]) -> None:
        self.source, self.target, self.maps = source, target, maps
        self._cached: dict[tuple[str, str], tuple[Tensor | None, Tensor]] = {}
        self._transposed: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def incoming(self, layer: Layer) -> Tensor:
        """Return the costs by the weights that lead to the neurons."""
        return self._current("incoming", layer, layer.inputs, _pairs(layer, self.source, self.target))

    def outgoing(self, layer: Layer) -> Tensor:
        """Return the costs by the weights that lead away from the neurons."""
        return self._current("outgoing", layer, layer.outputs, self._transposed_pairs(layer))

    def _current(
        self, side: str, layer: Layer, other_end: str | None, pairs: Iterable[tuple[Tensor, Tensor]]
    ) -> Tensor:
        order = None if other_end is None else self.maps[other_end]
        known = self._cached.get((layer.name, side))
        if known is None or not _is_same(known[0], order):
            mapped = ((ours if order is None else reorder_inputs(layer, ours, order), theirs) for ours, theirs in pairs)
            known = order, add_costs(squared_distances(theirs.flatten(1), ours.flatten(1)) for ours, theirs in mapped)
            self._cached[layer.name, side] = known
        return known[1]

    def _transposed_pairs(self, layer: Layer) -> Iterable[tuple[Tensor, Tensor]]:
        """Yield the weights with inputs and outputs exchanged: (inputs, outputs, ...)."""
        if layer.name not in self._transposed:
            assert layer.inputs is not None
            neurons = len(self.maps[layer.inputs])
            self._transposed[layer.name] = [
                (_transpose(ours, neurons), _transpose(theirs, neurons))
                for ours, theirs in _pairs(layer, self.source, self.target)
            ]
        yield from self._transposed[layer.name]


def _transpose(weight: Tensor, neurons: int) -> Tensor:
    return weight.reshape(len(weight), neurons, -1).transpose(0, 1).contiguous()


def _is_same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _pairs(layer: Layer, source: Pieces, target: Pieces) -> Iterable[tuple[Tensor, Tensor]]:
    name = f"{layer.name}.weight"
    for ours, theirs in zip(source(name), target(name), strict=True):
        if ours.shape != theirs.shape:
            shapes = f"{list(ours.shape)} and {list(theirs.shape)}"
            raise ValueError(f"Only models of one architecture can be matched: {name!r} has the shapes {shapes}.")
        yield ours, theirs


def _map_columns(layer: Layer, weight: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
    return weight if layer.inputs is None else reorder_inputs(layer, weight, maps[layer.inputs])


def _map_rows(layer: Layer, weight: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
    return weight if layer.outputs is None else reorder(weight, maps[layer.outputs])


def _unmoved(order: Tensor) -> Tensor:
    return order.diagonal().sum() if order.dim() == 2 else (order == torch.arange(len(order))).sum()
