"""The base class of what `model.name` can name."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn

from fedwild.core.component import Component
from fedwild.models.network import Network
from fedwild.models.shapes import Shape


class NetworkBuilder(Component, ABC):
    """Builds one kind of network from its settings."""

    @abstractmethod
    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        """Return a newly initialised network for inputs (n, *input_shape); `bias` is that of the head."""


def stage(**modules: nn.Module) -> nn.Sequential:
    """Return a stage of named modules in order, so that state-dict keys read `conv1.conv.weight`."""
    sequence = nn.Sequential()
    for name, module in modules.items():
        sequence.add_module(name, module)
    return sequence
