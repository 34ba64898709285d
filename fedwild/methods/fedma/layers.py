"""Layers one by one: which layer a round matches, which ones are frozen, a layer as neurons, and other widths."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedwild.contract import Step, Tensors
from fedwild.core.errors import UserError
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

    def select_trainable(self, state: Tensors) -> dict[str, Tensor]:
        """Return the tensors of a state that are not frozen."""
        frozen = tensors_of(self.frozen, state)
        return {name: tensor for name, tensor in state.items() if name not in frozen}


def norms_of(graph: LayerGraph, layer: Layer) -> set[str]:
    """Return the norms of a layer's neurons."""
    return {norm.name for norm in graph.layers if norm.kind == "norm" and norm.outputs == layer.outputs}


def tensors_of(layers: Collection[str], state: Tensors) -> dict[str, Tensor]:
    """Return the tensors of a state that belong to these layers."""
    return {name: tensor for name, tensor in state.items() if name.rpartition(".")[0] in layers}


def remap_inputs(state: Tensors, graph: LayerGraph, layer: Layer, atoms: Tensor, count: int) -> dict[str, Tensor]:
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


def neurons_of(layer: Layer, state: Tensors) -> Tensor:
    """Return a copy of a layer's neurons (n, d): the weights of each and, if the layer has one, its bias."""
    columns = [state[f"{layer.name}.weight"].flatten(1)]
    if f"{layer.name}.bias" in state:
        columns.append(state[f"{layer.name}.bias"][:, None])
    # `cat` copies even a single tensor.
    return torch.cat(columns, dim=1)


def layer_of(layer: Layer, neurons: Tensor, like: Tensors) -> dict[str, Tensor]:
    """Return a layer's tensors from its neurons (n, d): the inverse of `neurons_of`."""
    weight = like[f"{layer.name}.weight"]
    size = weight[0].numel()
    tensors = {f"{layer.name}.weight": neurons[:, :size].reshape(-1, *weight.shape[1:]).to(weight.dtype)}
    if f"{layer.name}.bias" in like:
        tensors[f"{layer.name}.bias"] = neurons[:, size].to(weight.dtype)
    return tensors


def resize(network: Network, state: Tensors) -> Network:
    """Load a copy of `state`, whose layers may be wider or narrower, into the network, and return the network.

    Its parameters are new objects. The numbers of inputs and class outputs must not change, and every layer must read
    as many neurons as are written. Otherwise `UserError` is raised and nothing changes.
    """
    _check(network, state)
    for name, tensor in state.items():
        path, _, leaf = name.rpartition(".")
        module = network.get_submodule(path)
        old = getattr(module, leaf)
        value = tensor.detach().to(old.device, copy=True)
        setattr(module, leaf, nn.Parameter(value) if isinstance(old, nn.Parameter) else value)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            module.out_channels, module.in_channels = module.weight.shape[0], module.weight.shape[1] * module.groups
        elif isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
        elif isinstance(module, _BatchNorm) and module.affine:
            module.num_features = len(module.weight)
    network.embedding_dim = network.head.in_features
    return network


def _check(network: Network, state: Tensors) -> None:
    built = network.state_dict()
    unmatched = sorted(built.keys() ^ state.keys())
    if unmatched:
        raise UserError(f"Tensor {unmatched[0]!r} is not in both the network {network.name!r} and its new weights.")
    for name, tensor in state.items():
        if tensor.dim() != built[name].dim() or tensor.dtype != built[name].dtype or 0 in tensor.shape:
            raise UserError(
                f"Tensor {name!r} is {tensor.dtype} {tuple(tensor.shape)}, which cannot replace "
                f"{built[name].dtype} {tuple(built[name].shape)} of {network.name!r}."
            )
    for name, shape in _expected_shapes(network.graph(), built, state).items():
        found = tuple(state[name].shape)
        if found != shape:
            raise UserError(f"Tensor {name!r} is {found}, but the layers around it in {network.name!r} need {shape}.")


def _expected_shapes(graph: LayerGraph, built: Tensors, state: Tensors) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor that fits the number of neurons that the first layer of each space writes."""
    widths: dict[str, int] = {}
    for layer in graph.weighted:
        if layer.outputs is not None:
            widths.setdefault(layer.outputs, len(state[f"{layer.name}.weight"]))
    shapes = {name: list(tensor.shape) for name, tensor in built.items()}
    for layer in graph.layers:
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            shape = shapes.get(f"{layer.name}.{leaf}")
            if shape and layer.outputs is not None:
                shape[0] = widths[layer.outputs]
        if layer.kind != "norm" and layer.inputs is not None:
            shapes[f"{layer.name}.weight"][1] = widths[layer.inputs] * layer.fold
    return {name: tuple(shape) for name, shape in shapes.items()}
