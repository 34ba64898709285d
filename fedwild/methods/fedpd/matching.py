"""Matching along a layer graph: for every space of neurons, the map that brings a model closest to a target model.

Singh, Jaggi: Model fusion via optimal transport. NeurIPS 2020; as in FedPD's equations 11 and 12. The sweeps that
consider both sides of a neuron are those of Ainsworth, Hayase, Srinivasa: Git Re-Basin. ICLR 2023.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor

from fedwild.contract import Tensors
from fedwild.methods.fedpd.solvers import Solver, solve_assignment
from fedwild.models.graph import Layer, LayerGraph, reorder_inputs

Maps = dict[str, Tensor]
"""By space of neurons, a permutation or a plan (see `Solver`)."""


def match_layers(
    graph: LayerGraph, source: Tensors, target: Tensors, solve: Solver = solve_assignment, sweeps: int = 0
) -> Maps:
    """Return one map per space such that `graph.permute(source, maps)` is close to the target.

    The first pass goes layer by layer: the inputs of a layer are reordered by the maps found before (Eq. 11), then its
    outputs are matched (Eq. 12). Layers joined by a skip connection share a map; those whose inputs are mapped already
    determine it. Each of the `sweeps` that follow goes through all spaces again and uses every layer that writes or
    reads them. With permutations, a sweep never increases the distance.
    """
    maps: Maps = {}
    costs = Costs(source, target, maps)
    for space in graph.spaces:
        writers = [layer for layer in graph.weighted if layer.outputs == space]
        ready = [layer for layer in writers if layer.inputs is None or layer.inputs in maps]
        maps[space] = solve(reduce(torch.add, (costs.incoming(layer) for layer in ready)))
    for _ in range(sweeps):
        before = dict(maps)
        for space in graph.spaces:
            incoming = (costs.incoming(layer) for layer in graph.weighted if layer.outputs == space)
            outgoing = (costs.outgoing(layer) for layer in graph.weighted if layer.inputs == space)
            maps[space] = solve(reduce(torch.add, (*incoming, *outgoing)))
        if all(torch.equal(maps[space], before[space]) for space in maps):
            break
    return maps


def moved_share(maps: Tensors) -> float:
    """Return the share of neurons that change their place, or of the mass that moves if maps are plans."""
    stay = sum(float(_unmoved(order)) for order in maps.values())
    neurons = sum(len(order) for order in maps.values())
    return 1 - stay / neurons if neurons else 0.0


def squared_distances(places: Tensor, neurons: Tensor) -> Tensor:
    """Return |a_i - b_j|^2 (n, n) of rows a (n, d) and b (n, d), by one matrix product."""
    # Unlike a sum of squares, a norm needs no second tensor of that size.
    own, other = (torch.linalg.vector_norm(rows, dim=1).square() for rows in (places, neurons))
    return (places @ neurons.T).mul_(-2).add_(own[:, None]).add_(other)


class Costs:
    """Costs (n, n) of placing neuron j of the source at place i, layer by layer, under maps that still change.

    A layer's costs depend only on the map at its other end. They are cached until that map changes, so that the largest
    layers are not computed again while the others settle.
    """

    def __init__(self, source: Tensors, target: Tensors, maps: Maps) -> None:
        self.source, self.target, self.maps = source, target, maps
        self._cached: dict[tuple[str, str], tuple[Tensor | None, Tensor]] = {}
        self._transposed: dict[str, tuple[Tensor, Tensor]] = {}

    def incoming(self, layer: Layer) -> Tensor:
        """Return the costs by the weights that lead to the neurons."""
        return self._current("incoming", layer, layer.inputs, self._weights(layer))

    def outgoing(self, layer: Layer) -> Tensor:
        """Return the costs by the weights that lead away from the neurons."""
        if layer.name not in self._transposed:
            assert layer.inputs is not None
            ours, theirs = self._weights(layer)
            neurons = len(self.maps[layer.inputs])
            self._transposed[layer.name] = _transpose(ours, neurons), _transpose(theirs, neurons)
        return self._current("outgoing", layer, layer.outputs, self._transposed[layer.name])

    def _current(self, side: str, layer: Layer, other_end: str | None, weights: tuple[Tensor, Tensor]) -> Tensor:
        order = None if other_end is None else self.maps[other_end]
        known = self._cached.get((layer.name, side))
        if known is None or not _is_same(known[0], order):
            ours, theirs = weights
            ours = ours if order is None else reorder_inputs(layer, ours, order)
            known = order, squared_distances(theirs.flatten(1), ours.flatten(1))
            self._cached[layer.name, side] = known
        return known[1]

    def _weights(self, layer: Layer) -> tuple[Tensor, Tensor]:
        name = f"{layer.name}.weight"
        ours, theirs = self.source[name], self.target[name]
        if ours.shape != theirs.shape:
            shapes = f"{list(ours.shape)} and {list(theirs.shape)}"
            raise ValueError(f"Only models of one architecture can be matched: {name!r} has the shapes {shapes}.")
        return ours, theirs


def _transpose(weight: Tensor, neurons: int) -> Tensor:
    """Return a weight with inputs and outputs exchanged: (inputs, outputs, ...)."""
    return weight.reshape(len(weight), neurons, -1).transpose(0, 1).contiguous()


def _is_same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _unmoved(order: Tensor) -> Tensor:
    return order.diagonal().sum() if order.dim() == 2 else (order == torch.arange(len(order))).sum()
