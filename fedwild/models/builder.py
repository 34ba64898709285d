"""The base class of what `model.name` can name, and checks of input shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn

from fedwild.core.component import Component
from fedwild.core.errors import UserError
from fedwild.models.network import Network, Shape

_SPATIAL = {2: "images (channels, height, width)", 3: "volumes (channels, depth, height, width)"}


class NetworkBuilder(Component, ABC):
    """Builds one kind of network from its settings."""

    @abstractmethod
    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        """Return a newly initialised network for inputs (n, *input_shape); `bias` is that of the head."""

    def check_spatial(self, shape: Shape, dims: int, smallest: int = 1) -> None:
        """Reject all shapes but (channels, *sides) with `dims` sides of at least `smallest`."""
        if len(shape) != dims + 1 or min(shape) < 1 or min(shape[1:]) < smallest:
            sides = "x".join([str(smallest)] * dims)
            raise UserError(
                f"model {self.name!r} accepts {_SPATIAL[dims]} of at least {sides}, not inputs of shape {shape}."
            )


def stage(**modules: nn.Module) -> nn.Sequential:
    """Return a stage of named modules in order, so that state-dict keys read `conv1.conv.weight`."""
    sequence = nn.Sequential()
    for name, module in modules.items():
        sequence.add_module(name, module)
    return sequence
