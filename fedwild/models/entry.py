"""What the registry knows of a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from fedwild.hyper import Hyper
from fedwild.models.network import Network
from fedwild.models.shapes import Shape


class NoParams(Hyper):
    """A network without settings of its own."""


@dataclass(frozen=True)
class ModelEntry:
    """A network by name: a one-line summary, its settings, and how to make it.

    `make(input_shape, outputs, bias, params)` gets an instance of `Params`.
    """

    name: str
    summary: str
    Params: type[Hyper]
    make: Callable[[Shape, int, bool, Any], Network]


def stage(**modules: nn.Module) -> nn.Sequential:
    """A stage of named modules in order, so that state-dict keys read `conv1.conv.weight`."""
    sequence = nn.Sequential()
    for name, module in modules.items():
        sequence.add_module(name, module)
    return sequence
