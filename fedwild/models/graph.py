"""The layer graph: which layers read and write which neurons, so that models can be aligned by permutation.

A *space* is a set of neurons (channels or units) that one permutation reorders. Layers joined by a skip
connection write into the same space; a batch-norm layer reads and writes one space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedwild.errors import UserError, unknown_name

Kind = Literal["conv", "linear", "norm"]


class Wire(NamedTuple):
    """One layer's module path with the space it reads (None: the input) and writes (None: the classes)."""

    name: str
    inputs: str | None
    outputs: str | None


@dataclass(frozen=True)
class Layer:
    """A layer with parameters; its state-dict keys are `name + '.weight'` and so on.

    `fold` is the number of spatial positions per input channel when a linear layer follows a flatten, else 1:
    input column `channel * fold + position` belongs to `channel`.
    """

    name: str
    kind: Kind
    inputs: str | None
    outputs: str | None
    fold: int = 1


@dataclass(frozen=True)
class LayerGraph:
    """A network's layers in forward order and the width of each space."""

    layers: tuple[Layer, ...]
    spaces: dict[str, int]

    @property
    def weighted(self) -> tuple[Layer, ...]:
        """The layers with weights between neurons: all but the norms."""
        return tuple(layer for layer in self.layers if layer.kind != "norm")

    def permute(self, state: Mapping[str, Tensor], maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state dict with each space's neurons reordered; by permutations, that of the same function.

        `maps[space]` is a permutation (width,): new neuron `i` is old neuron `maps[space][i]`; or a plan
        (width, width) whose rows add up to one: new neuron `i` is the mean of the old ones, weighted by row `i`.
        Spaces left out keep their order, tensors that are not in `state` are passed over. Class outputs and the
        network's input are never permuted.
        """
        for space, order in maps.items():
            self._check(space, order)
        permuted = dict(state)
        for layer in self.layers:
            rows = None if layer.outputs is None else maps.get(layer.outputs)
            columns = None if layer.inputs is None else maps.get(layer.inputs)
            if rows is not None:
                for key in _row_keys(layer, permuted):
                    permuted[key] = reordered(permuted[key], rows)
            key = f"{layer.name}.weight"
            if columns is not None and layer.kind != "norm" and key in permuted:
                permuted[key] = with_inputs(layer, permuted[key], columns)
        return permuted

    def _check(self, space: str, order: Tensor) -> None:
        if space not in self.spaces:
            raise unknown_name("Space", space, self.spaces)
        width = self.spaces[space]
        if order.dim() == 2:
            if order.shape != (width, width):
                raise ValueError(f"Space {space!r} needs a plan of {width} x {width} neurons, not {list(order.shape)}.")
        elif not torch.equal(order.sort().values.cpu(), torch.arange(width)):
            raise ValueError(f"Space {space!r} needs a permutation of {width} neurons.")


def reordered(tensor: Tensor, order: Tensor) -> Tensor:
    """A tensor (width, ...) with its first axis reordered by a permutation (width,) or a plan (width, width)."""
    order = order.to(tensor.device)
    if order.dim() == 1:
        return tensor.index_select(0, order)
    return (order.to(tensor) @ tensor.reshape(len(tensor), -1)).view_as(tensor)


def with_inputs(layer: Layer, weight: Tensor, order: Tensor) -> Tensor:
    """A layer's weight (rows, inputs, ...) as it reads neurons that were reordered."""
    channels = order.shape[0]
    # A flatten before the layer has spread each channel over `fold` columns, which move together.
    blocks = weight.reshape(weight.shape[0], channels, -1)
    if order.dim() == 1:
        return blocks.index_select(1, order.to(weight.device)).reshape(weight.shape)
    return torch.einsum("ij,rjf->rif", order.to(weight), blocks).reshape(weight.shape)


def build_graph(network: nn.Module, wires: Iterable[Wire]) -> LayerGraph:
    """The graph of `network` from its wiring; kinds, widths and folds are read off the modules."""
    layers: list[Layer] = []
    spaces: dict[str, int] = {}
    for wire in wires:
        module = network.get_submodule(wire.name)
        kind = kind_of(module)
        if kind is None:
            raise UserError(f"Layer {wire.name!r} is a {type(module).__name__}, which no layer graph can hold.")
        if getattr(module, "groups", 1) != 1:
            raise UserError(f"Layer {wire.name!r} is a convolution in groups, whose neurons cannot be aligned.")
        fold = 1
        if isinstance(module, nn.Linear) and wire.inputs is not None:
            fold = module.in_features // spaces[wire.inputs]
        if wire.outputs is not None:
            spaces.setdefault(wire.outputs, _width(module))
        layers.append(Layer(wire.name, kind, wire.inputs, wire.outputs, fold))
    _check_complete(network, layers)
    return LayerGraph(tuple(layers), spaces)


def _check_complete(network: nn.Module, layers: Iterable[Layer]) -> None:
    """A layer that is left out would keep its order while its neighbours change theirs."""
    placed = {layer.name for layer in layers}
    for path, module in network.named_modules():
        if path not in placed and any(True for _ in module.parameters(recurse=False)):
            raise UserError(
                f"Layer {path!r} ({type(module).__name__}) is not in the network's wires, so it cannot be aligned."
            )


def chain_wires(stages: Mapping[str, nn.Module]) -> tuple[Wire, ...]:
    """The wiring of a network without branches: every conv or linear layer opens a space of its own name."""
    wires: list[Wire] = []
    space: str | None = None
    for stage_name, stage in stages.items():
        for path, module in stage.named_modules(prefix=stage_name):
            kind = kind_of(module)
            if kind == "norm":
                wires.append(Wire(path, space, space))
            elif kind is not None:
                wires.append(Wire(path, space, path))
                space = path
    return tuple(wires)


def kind_of(module: nn.Module) -> Kind | None:
    """What a module is to the graph; None for modules without neurons of their own."""
    if isinstance(module, nn.Conv2d | nn.Conv3d):
        return "conv"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, _BatchNorm):
        return "norm"
    return None


def has_batch_norm(model: nn.Module) -> bool:
    """Whether the model has batch-norm layers, which may refuse a training batch of one sample."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _width(module: nn.Module) -> int:
    """The number of neurons a layer writes: the length of its weight's first axis."""
    weight = module.get_parameter("weight")
    return weight.shape[0]


def _row_keys(layer: Layer, state: Mapping[str, Tensor]) -> list[str]:
    """The keys of a layer's tensors whose first axis is its outputs (without the scalar batch counter)."""
    names = ("weight", "bias", "running_mean", "running_var")
    keys = [f"{layer.name}.{name}" for name in names]
    return [key for key in keys if key in state]
