"""Networks whose layers are wider or narrower than their architecture."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedwild.core.errors import UserError
from fedwild.models.graph import LayerGraph
from fedwild.models.network import Network


def resize(network: Network, state: Mapping[str, Tensor]) -> Network:
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
        _set_sizes(module)
    network.embedding_dim = network.head.in_features
    return network


def _set_sizes(module: nn.Module) -> None:
    """Set the size attributes of a module to those of its tensors."""
    if isinstance(module, nn.Conv2d | nn.Conv3d):
        module.out_channels, module.in_channels = module.weight.shape[0], module.weight.shape[1] * module.groups
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, _BatchNorm) and module.affine:
        module.num_features = len(module.weight)


def _check(network: Network, state: Mapping[str, Tensor]) -> None:
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


def _expected_shapes(
    graph: LayerGraph, built: Mapping[str, Tensor], state: Mapping[str, Tensor]
) -> dict[str, tuple[int, ...]]:
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
