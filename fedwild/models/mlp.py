"""Dense networks for feature vectors; images are flattened."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import nn

from fedwild.hyper import Hyper
from fedwild.models.entry import ModelEntry, stage
from fedwild.models.graph import chain_wires
from fedwild.models.network import Network
from fedwild.models.shapes import Shape, flat_size


class MlpParams(Hyper):
    """Settings of `mlp`."""

    hidden: list[Annotated[int, Field(ge=1)]] = Field(
        default=[256, 128], min_length=1, description="Widths of the hidden layers, first to last."
    )


def mlp(input_shape: Shape, outputs: int, bias: bool, params: MlpParams) -> Network:
    """Dense layers with ReLU, stages fc1, fc2, ...; inputs of any shape."""
    width = flat_size("mlp", input_shape)
    stages: dict[str, nn.Module] = {}
    for number, units in enumerate(params.hidden, start=1):
        stages[f"fc{number}"] = stage(flatten=nn.Flatten(), fc=nn.Linear(width, units), relu=nn.ReLU())
        width = units
    return Network("mlp", input_shape, stages, width, outputs, bias, wires=chain_wires(stages))


ENTRIES = (ModelEntry("mlp", "Dense layers for feature vectors; flattens images.", MlpParams, mlp),)
