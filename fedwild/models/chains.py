"""Networks without branches: mlp, simple-cnn, digit-cnn, digit-five-cnn, vgg-9."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import nn

from fedwild.core.errors import UserError
from fedwild.core.settings import Settings
from fedwild.models.builder import NetworkBuilder, stage
from fedwild.models.graph import chain_wires
from fedwild.models.kernels import ConvPoolReLU, MaxPool2x2
from fedwild.models.network import Network, Shape
from fedwild.models.registry import MODELS


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
        if not input_shape or min(input_shape) < 1:
            raise UserError(
                f"model {self.name!r} accepts feature vectors (d,) or images, not inputs of shape {input_shape}."
            )
        width = math.prod(input_shape)
        stages: dict[str, nn.Module] = {}
        for number, units in enumerate(self.params.hidden, start=1):
            stages[f"fc{number}"] = stage(flatten=nn.Flatten(), fc=nn.Linear(width, units), relu=nn.ReLU())
            width = units
        return Network(self.name, input_shape, stages, width, outputs, bias, wires=chain_wires(stages))


class WidthParams(Settings):
    """Settings of networks whose width can be chosen."""

    width: float = Field(
        default=1.0,
        gt=0,
        le=4,
        description="Factor on the widths of all layers; 0.25 leaves about a sixteenth of the weights.",
    )

    def scale(self, *full: int) -> list[int]:
        """Return the widths of layers, at least 1, from those at width 1."""
        return [max(1, round(self.width * width)) for width in full]


@MODELS.add("simple-cnn")
class SimpleCnn(NetworkBuilder):
    """Two 5x5 convolutions and two dense layers (FedOV); 44 k parameters.

    Like LeNet: convolutions with 6 and 16 channels, dense layers with 120 and 84 units, for images of at least 8x8.
    """

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        self.check_spatial(input_shape, dims=2, smallest=8)
        channels, *sides = input_shape
        # Without padding, images smaller than MNIST's would shrink to almost nothing.
        padding = 2 if min(sides) < 28 else 0
        for _ in range(2):
            sides = [(side + 2 * padding - 4) // 2 for side in sides]
        stages: dict[str, nn.Module] = {
            "conv1": ConvPoolReLU(channels, 6, 5, padding),
            "conv2": ConvPoolReLU(6, 16, 5, padding),
            "fc1": stage(flatten=nn.Flatten(), fc=nn.Linear(16 * sides[0] * sides[1], 120), relu=nn.ReLU()),
            "fc2": stage(fc=nn.Linear(120, 84), relu=nn.ReLU()),
        }
        return Network(self.name, input_shape, stages, 84, outputs, bias, wires=chain_wires(stages))


@MODELS.add("digit-cnn")
class DigitCnn(NetworkBuilder):
    """Three 5x5 convolutions and two dense layers with batch norm (FedPD); 14 M parameters.

    Convolutions with 64, 64 and 128 channels, dense layers with 2048 and 512 units, for images of at least 4x4.
    """

    Params = WidthParams

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        return self.build_with(input_shape, outputs, bias, dense=(2048, 512))

    def build_with(
        self, input_shape: Shape, outputs: int, bias: bool, dense: tuple[int, int], dropout: float | None = None
    ) -> Network:
        """Return the network with these dense layers at width 1 and, if given, dropout between them."""
        self.check_spatial(input_shape, dims=2, smallest=4)
        channels, height, width = input_shape
        a, b, c, d, e = self.params.scale(64, 64, 128, *dense)
        stages = {
            "conv1": _digit_conv(channels, a, pool=True),
            "conv2": _digit_conv(a, b, pool=True),
            "conv3": _digit_conv(b, c, pool=False),
            "fc1": stage(flatten=nn.Flatten(), **_digit_fc(c * (height // 4) * (width // 4), d)),
            "fc2": stage(**_digit_fc(d, e)),
        }
        if dropout is not None:
            stages["fc1"].add_module("dropout", nn.Dropout(dropout))
        return Network(self.name, input_shape, stages, e, outputs, bias, wires=chain_wires(stages))


class DigitFiveParams(WidthParams):
    """Settings of `digit-five-cnn`."""

    dropout: float = Field(default=0.5, ge=0.0, lt=1.0, description="Dropout rate after the first dense layer.")


@MODELS.add("digit-five-cnn")
class DigitFiveCnn(DigitCnn):
    """Three 5x5 convolutions, dense layers with 3072 and 2048 units and dropout (Gains); 31.8 M parameters.

    As `digit-cnn`, with wider dense layers, for images of at least 4x4; the paper's images are 32x32.
    """

    Params = DigitFiveParams

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        return self.build_with(input_shape, outputs, bias, dense=(3072, 2048), dropout=self.params.dropout)


def _digit_conv(inputs: int, width: int, pool: bool) -> nn.Sequential:
    # No bias: the batch norm that follows would remove it.
    conv = nn.Conv2d(inputs, width, 5, padding=2, bias=False)
    layers = stage(conv=conv, norm=nn.BatchNorm2d(width), relu=nn.ReLU())
    if pool:
        layers.add_module("pool", MaxPool2x2())
    return layers


def _digit_fc(inputs: int, width: int) -> dict[str, nn.Module]:
    return {"fc": nn.Linear(inputs, width, bias=False), "norm": nn.BatchNorm1d(width), "relu": nn.ReLU()}


class VggParams(WidthParams):
    """Settings of `vgg-9`."""

    dropout: bool = Field(
        default=False,
        description="Drop 5 % of the channels after conv4 and 10 % of the units before fc1 and before the head.",
    )


@MODELS.add("vgg-9")
class Vgg9(NetworkBuilder):
    """Six 3x3 convolutions and two dense layers without batch norm (FedMA); 3.5 M parameters.

    Convolutions with 32, 64, 128, 128, 256 and 256 channels, dense layers with 512 units, for images of at least 8x8.
    """

    Params = VggParams

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        self.check_spatial(input_shape, dims=2, smallest=8)
        channels, height, width = input_shape
        channel_share, unit_share = (0.05, 0.1) if self.params.dropout else (0.0, 0.0)
        stages: dict[str, nn.Module] = {}
        for number, filters in enumerate(self.params.scale(32, 64, 128, 128, 256, 256), start=1):
            layers = stage(conv=nn.Conv2d(channels, filters, 3, padding=1), relu=nn.ReLU())
            if number % 2 == 0:
                layers.add_module("pool", MaxPool2x2())
            if number == 4:
                layers.add_module("dropout", nn.Dropout2d(channel_share))
            stages[f"conv{number}"] = layers
            channels = filters
        flat = channels * (height // 8) * (width // 8)
        (dense,) = self.params.scale(512)
        flatten, dropout = nn.Flatten(), nn.Dropout(unit_share)
        stages["fc1"] = stage(flatten=flatten, dropout=dropout, fc=nn.Linear(flat, dense), relu=nn.ReLU())
        stages["fc2"] = stage(fc=nn.Linear(dense, dense), relu=nn.ReLU(), dropout=nn.Dropout(unit_share))
        return Network(self.name, input_shape, stages, dense, outputs, bias, wires=chain_wires(stages))
