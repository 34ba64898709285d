"""Layers one by one: which layer a round matches, which ones are frozen, and a layer as a list of neurons."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedwild.contract import Step
from fedwild.methods.fedma.bayes import spread_columns
from fedwild.models import Layer, LayerGraph, Network


@dataclass(frozen=True)
class CurrentLayer:
    """The layer that a round matches. The layers before it are frozen; those after it still differ by client."""

    graph: LayerGraph
    number: int

    @classmethod
    def at(cls, graph: LayerGraph, step: Step) -> CurrentLayer:
        """Return the layer of a round: round r matches layer r mod L of the L layers with weights; the head is last."""
        return cls(graph, step.index % len(graph.weighted))

    @property
    def layer(self) -> Layer:
        return self.graph.weighted[self.number]

    @property
    def previous(self) -> Layer:
        """The layer of the previous round."""
        return self.graph.weighted[self.number - 1]

    @property
    def is_head(self) -> bool:
        return self.layer.outputs is None

    @property
    def norms(self) -> set[str]:
        """The norms of the layer's neurons."""
        return norms_of(self.graph, self.layer)

    @cached_property
    def frozen(self) -> set[str]:
        """The layers matched in this pass through the network, and the norms of their neurons."""
        past = self.graph.weighted[: self.number]
        return {layer.name for layer in past}.union(*(norms_of(self.graph, layer) for layer in past))

    def select_trainable(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a state that are not frozen."""
        frozen = tensors_of(self.frozen, state)
        return {name: tensor for name, tensor in state.items() if name not in frozen}


def norms_of(graph: LayerGraph, layer: Layer) -> set[str]:
    """Return the norms of a layer's neurons."""
    return {norm.name for norm in graph.layers if norm.kind == "norm" and norm.outputs == layer.outputs}


def tensors_of(layers: Collection[str], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a state that belong to these layers."""
    return {name: tensor for name, tensor in state.items() if name.rpartition(".")[0] in layers}


def remap_inputs(
    state: Mapping[str, Tensor], graph: LayerGraph, layer: Layer, atoms: Tensor, count: int
) -> dict[str, Tensor]:
    """Return a state in which the readers of `layer` read `count` atoms instead, where neuron j is atom `atoms[j]`."""
    readers = [f"{reader.name}.weight" for reader in graph.weighted if reader.inputs == layer.outputs]
    return {**state, **{name: spread_columns(state[name], atoms, count) for name in readers}}


def freeze(network: Network, layers: Collection[str]) -> None:
    """Freeze layers: no gradients, and norms use the statistics that they have."""
    for path in layers:
        module = network.get_submodule(path).requires_grad_(False)
        # Training puts all modules into training mode, so a norm must leave it before every call.
        module.register_forward_pre_hook(_leave_training)


def _leave_training(module: nn.Module, inputs: Any) -> None:
    module.training = False


def neurons_of(layer: Layer, state: Mapping[str, Tensor]) -> Tensor:
    """Return a copy of a layer's neurons (n, d): the weights of each and, if the layer has one, its bias."""
    columns = [state[f"{layer.name}.weight"].flatten(1)]
    if f"{layer.name}.bias" in state:
        columns.append(state[f"{layer.name}.bias"][:, None])
    # `cat` copies even a single tensor.
    return torch.cat(columns, dim=1)


def layer_of(layer: Layer, neurons: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a layer's tensors from its neurons (n, d): the inverse of `neurons_of`."""
    weight = like[f"{layer.name}.weight"]
    size = weight[0].numel()
    tensors = {f"{layer.name}.weight": neurons[:, :size].reshape(-1, *weight.shape[1:]).to(weight.dtype)}
    if f"{layer.name}.bias" in like:
        tensors[f"{layer.name}.bias"] = neurons[:, size].to(weight.dtype)
    return tensors
