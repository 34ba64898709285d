"""Dense networks for feature vectors; images are flattened."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from fedwild.core.settings import Settings
from fedwild.models.builder import NetworkBuilder, stage
from fedwild.models.graph import chain_wires
from fedwild.models.network import Network
from fedwild.models.registry import MODELS
from fedwild.models.shapes import Shape, flat_size


class MlpParams(Settings):
    """Settings of `mlp`."""

    hidden: list[Annotated[int, Field(ge=1)]] = Field(
        default=[256, 128], min_length=1, description="Widths of the hidden layers, first to last."
    )


@MODELS.add("mlp")
class Mlp(NetworkBuilder):
    """Dense layers for feature vectors; images are flattened.

    Stages fc1, fc2, ... with ReLU, for inputs of any shape.
    """

    Params = MlpParams

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        width = flat_size(self.name, input_shape)
        stages: dict[str, nn.Module] = {}
        for number, units in enumerate(self.params.hidden, start=1):
            stages[f"fc{number}"] = stage(flatten=nn.Flatten(), fc=nn.Linear(width, units), relu=nn.ReLU())
            width = units
        return Network(self.name, input_shape, stages, width, outputs, bias, wires=chain_wires(stages))
