"""The layer graph: which neurons each layer reads and writes, so that models can be aligned by permutation.

A *space* is a set of neurons (channels or units) that one permutation reorders. Layers joined by a skip connection
write the same space; a batch-norm layer reads and writes one space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedwild.core.errors import UserError, unknown_name
from fedwild.models.acs import ACSConv

Kind = Literal["conv", "linear", "norm"]


class Wire(NamedTuple):
    """The module path of a layer with the space that it reads (None: the input) and writes (None: the classes)."""

    name: str
    inputs: str | None
    outputs: str | None


@dataclass(frozen=True)
class Layer:
    """A layer with parameters; its state-dict keys are `{name}.weight` and so on.

    `fold` is the number of spatial positions per input channel if a linear layer follows a flatten, else 1: input
    column `channel * fold + position` belongs to `channel`.
    """

    name: str
    kind: Kind
    inputs: str | None
    outputs: str | None
    fold: int = 1


@dataclass(frozen=True)
class LayerGraph:
    """The layers of a network in forward order and the width of each space."""

    layers: tuple[Layer, ...]
    spaces: dict[str, int]

    @property
    def weighted(self) -> tuple[Layer, ...]:
        """The convolutional and linear layers: all but the norms."""
        return tuple(layer for layer in self.layers if layer.kind != "norm")

    def permute(self, state: Mapping[str, Tensor], maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the state dict with the neurons of each space reordered; permutations keep the function.

        `maps[space]` is a permutation (width,): new neuron `i` is old neuron `maps[space][i]`; or a transport plan
        (width, width) whose rows sum to one: new neuron `i` is the mean of the old ones, weighted by row `i`. Spaces
        without a map keep their order, and tensors that are not in `state` are skipped. Class outputs and the
        network's input are never permuted.
        """
        for space, order in maps.items():
            self._check(space, order)
        permuted = dict(state)
        for layer in self.layers:
            rows = None if layer.outputs is None else maps.get(layer.outputs)
            columns = None if layer.inputs is None else maps.get(layer.inputs)
            if rows is not None:
                # The first axis of these tensors is the layer's outputs; the batch counter has none.
                for name in ("weight", "bias", "running_mean", "running_var"):
                    if (key := f"{layer.name}.{name}") in permuted:
                        permuted[key] = reorder(permuted[key], rows)
            key = f"{layer.name}.weight"
            if columns is not None and layer.kind != "norm" and key in permuted:
                permuted[key] = reorder_inputs(layer, permuted[key], columns)
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


def reorder(tensor: Tensor, order: Tensor) -> Tensor:
    """Return a tensor (width, ...) with its first axis reordered by a permutation (width,) or plan (width, width)."""
    order = order.to(tensor.device)
    if order.dim() == 1:
        return tensor.index_select(0, order)
    return (order.to(tensor) @ tensor.reshape(len(tensor), -1)).view_as(tensor)


def reorder_inputs(layer: Layer, weight: Tensor, order: Tensor) -> Tensor:
    """Return a layer's weight (rows, inputs, ...) for input neurons in the new order."""
    channels = order.shape[0]
    # After a flatten, each channel has `fold` columns, which move together.
    blocks = weight.reshape(weight.shape[0], channels, -1)
    if order.dim() == 1:
        return blocks.index_select(1, order.to(weight.device)).reshape(weight.shape)
    return torch.einsum("ij,rjf->rif", order.to(weight), blocks).reshape(weight.shape)


def build_graph(network: nn.Module, wires: Iterable[Wire]) -> LayerGraph:
    """Return the graph of `network` from its wires; kinds, widths and folds are read from the modules."""
    layers: list[Layer] = []
    spaces: dict[str, int] = {}
    for wire in wires:
        module = network.get_submodule(wire.name)
        kind = kind_of(module)
        if kind is None:
            raise UserError(
                f"Layer {wire.name!r} is a {type(module).__name__}: layer graphs support conv, linear and norm layers."
            )
        if isinstance(module, ACSConv):
            raise UserError(f"Layer {wire.name!r} is an ACS convolution: its neurons cannot be aligned.")
        if getattr(module, "groups", 1) != 1:
            raise UserError(f"Layer {wire.name!r} is a grouped convolution: its neurons cannot be aligned.")
        fold = 1
        if isinstance(module, nn.Linear) and wire.inputs is not None:
            fold = module.in_features // spaces[wire.inputs]
        if wire.outputs is not None:
            spaces.setdefault(wire.outputs, len(module.get_parameter("weight")))
        layers.append(Layer(wire.name, kind, wire.inputs, wire.outputs, fold))
    _check_complete(network, layers)
    return LayerGraph(tuple(layers), spaces)


def _check_complete(network: nn.Module, layers: Iterable[Layer]) -> None:
    """Reject a graph that omits a layer: it would keep its order while its neighbours change theirs."""
    placed = {layer.name for layer in layers}
    for path, module in network.named_modules():
        if path not in placed and any(True for _ in module.parameters(recurse=False)):
            raise UserError(
                f"Layer {path!r} ({type(module).__name__}) is missing from the network's wires: it cannot be aligned."
            )


def chain_wires(stages: Mapping[str, nn.Module]) -> tuple[Wire, ...]:
    """Return the wires of a network without branches: every conv or linear layer writes a space of its own name."""
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
    """Return the kind of a module in the graph; None for modules without neurons."""
    if isinstance(module, nn.Conv2d | nn.Conv3d):
        return "conv"
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, _BatchNorm):
        return "norm"
    return None


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a model has batch-norm layers, which may reject a training batch of one sample."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())
