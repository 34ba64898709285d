"""All networks by name, and how to build one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedwild.errors import unknown_name
from fedwild.hyper import validated
from fedwild.models import cnn, mlp, resnet, wideresnet
from fedwild.models.entry import ModelEntry
from fedwild.models.imported import build_imported
from fedwild.models.network import Network

MODELS: dict[str, ModelEntry] = {
    entry.name: entry for family in (cnn, resnet, wideresnet, mlp) for entry in family.ENTRIES
}


def model_names() -> list[str]:
    """The names of the built-in networks, sorted."""
    return sorted(MODELS)


def build(
    name: str,
    input_shape: Sequence[int],
    outputs: int,
    bias: bool = True,
    params: Mapping[str, Any] | None = None,
) -> Network:
    """A freshly initialised network (from torch's global random source) for inputs (n, *input_shape).

    `name` is a built-in name or an import path `package.module:Class`; `bias` is that of the head. An import
    path runs the user's code: never build from a name that came over the network.
    """
    shape = tuple(int(side) for side in input_shape)
    params = {} if params is None else params
    if ":" in name:
        return build_imported(name, shape, outputs, bias, params)
    if name not in MODELS:
        raise unknown_name("model.name", name, MODELS)
    entry = MODELS[name]
    return entry.make(shape, outputs, bias, validated(entry.Params, params, "model"))
