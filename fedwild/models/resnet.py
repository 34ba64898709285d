"""Residual networks (He et al., CVPR 2016) for images (2 sides) and volumes (3 sides)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field
from torch import Tensor, nn

from fedwild.core.settings import Settings
from fedwild.models.acs import ACSConv
from fedwild.models.builder import NetworkBuilder, stage
from fedwild.models.graph import Wire
from fedwild.models.network import Network, Shape
from fedwild.models.registry import MODELS


class Layers(NamedTuple):
    """The layers of a network for images or for volumes."""

    conv: type[nn.Conv2d] | type[nn.Conv3d]
    norm: type[nn.BatchNorm2d] | type[nn.BatchNorm3d]
    pool: type[nn.MaxPool2d] | type[nn.MaxPool3d]


IMAGES = Layers(nn.Conv2d, nn.BatchNorm2d, nn.MaxPool2d)
VOLUMES = Layers(nn.Conv3d, nn.BatchNorm3d, nn.MaxPool3d)
VIEWED_VOLUMES = VOLUMES._replace(conv=ACSConv)


class ResNetParams(Settings):
    """Settings of the residual networks."""

    width: int = Field(
        default=64, ge=1, description="Channels of the stem; the four stages have 1, 2, 4 and 8 times as many."
    )
    stem: Literal["auto", "small", "large"] = Field(
        default="auto",
        description="small: 3x3 with stride 1; large: 7x7 with stride 2 and max-pool; auto: small for sides below 96.",
    )


class VolumeResNetParams(ResNetParams):
    """Settings of the residual networks for volumes."""

    convolution: Literal["3d", "acs"] = Field(
        default="3d",
        description="3d: cubic kernels; acs: 2-D kernels, a third each in axial, coronal and sagittal view.",
    )


def conv(layers: Layers, inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    """Return a convolution without bias, since a norm follows, that only its stride makes smaller."""
    return layers.conv(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class Block(nn.Module, ABC):
    """A residual block with a shortcut, which is a layer if the shapes of input and output differ."""

    shortcut: nn.Module | None
    outputs: int

    def space_after(self, path: str, space: str) -> str:
        """Return the space that the block writes if it reads `space`: the same one unless the shortcut is a layer."""
        return space if self.shortcut is None else path

    @abstractmethod
    def wires(self, path: str, space: str) -> list[Wire]:
        """Return the wires of the block at `path` if it reads `space`."""


def add_blocks(
    stages: dict[str, nn.Module],
    wires: list[Wire],
    counts: Sequence[int],
    name: str,
    channels: int,
    make: Callable[[int, int, int], Block],
) -> tuple[int, str]:
    """Add stages `{name}1`, `{name}2` ... of blocks after the stem, and initialise all convolutions.

    `make` gets the number of input channels, the number of the stage from 0, and the stride. Convolutions are
    initialised by He's method with fan-out. Return the number of channels and the space that the last block writes.
    """
    space = "stem"
    for index, count in enumerate(counts):
        layer = nn.Sequential()
        for number in range(count):
            block = make(channels, index, 2 if index > 0 and number == 0 else 1)
            path = f"{name}{index + 1}.{number}"
            wires += block.wires(path, space)
            channels, space = block.outputs, block.space_after(path, space)
            layer.append(block)
        stages[f"{name}{index + 1}"] = layer
    for part in nn.ModuleDict(stages).modules():
        if isinstance(part, nn.Conv2d | nn.Conv3d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    return channels, space


class GlobalAveragePool(nn.Module):
    """(n, c, *sides) to (n, c), for sides of any length."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=tuple(range(2, x.dim())))


class ResidualBlock(Block):
    """`relu(body(x) + shortcut(x))`; the shortcut is a 1x1 convolution if the shapes differ."""

    def __init__(self, layers: Layers, inputs: int, outputs: int, stride: int, body: nn.Sequential) -> None:
        super().__init__()
        self.body = body
        self.outputs = outputs
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = stage(conv=conv(layers, inputs, outputs, 1, stride), norm=layers.norm(outputs))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, *sides) to (n, outputs, *sides / stride)."""
        skipped = x if self.shortcut is None else self.shortcut(x)
        return self.relu(self.body(x) + skipped)

    def wires(self, path: str, space: str) -> list[Wire]:
        target = self.space_after(path, space)
        convolutions = sum(isinstance(part, nn.Conv2d | nn.Conv3d) for part in self.body)
        wires: list[Wire] = []
        inputs = space
        for number in range(1, convolutions + 1):
            name = f"{path}.body.conv{number}"
            outputs = target if number == convolutions else name
            wires += [Wire(name, inputs, outputs), Wire(f"{path}.body.norm{number}", outputs, outputs)]
            inputs = outputs
        if self.shortcut is not None:
            wires += [Wire(f"{path}.shortcut.conv", space, target), Wire(f"{path}.shortcut.norm", target, target)]
        return wires


def basic_block(layers: Layers, inputs: int, width: int, stride: int) -> ResidualBlock:
    """Return a block of two 3x3 convolutions."""
    body = stage(
        conv1=conv(layers, inputs, width, 3, stride),
        norm1=layers.norm(width),
        relu1=nn.ReLU(),
        conv2=conv(layers, width, width, 3),
        norm2=layers.norm(width),
    )
    return ResidualBlock(layers, inputs, width, stride, body)


def bottleneck_block(layers: Layers, inputs: int, width: int, stride: int) -> ResidualBlock:
    """Return a block of 1x1, 3x3 (strided) and 1x1 convolutions with 4 * `width` output channels."""
    body = stage(
        conv1=conv(layers, inputs, width, 1),
        norm1=layers.norm(width),
        relu1=nn.ReLU(),
        conv2=conv(layers, width, width, 3, stride),
        norm2=layers.norm(width),
        relu2=nn.ReLU(),
        conv3=conv(layers, width, 4 * width, 1),
        norm3=layers.norm(4 * width),
    )
    return ResidualBlock(layers, inputs, 4 * width, stride, body)


class ResNet(NetworkBuilder):
    """A residual network with `blocks[i]` blocks in stage `layer{i+1}`, for inputs of any size."""

    Params = ResNetParams
    blocks: ClassVar[tuple[int, ...]]
    bottleneck: ClassVar[bool] = False
    dims: ClassVar[int] = 2

    @property
    def layers(self) -> Layers:
        """What the network is made of."""
        return IMAGES

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        self.check_spatial(input_shape, self.dims)
        width = self.params.width
        stages: dict[str, nn.Module] = {"stem": _stem(self.layers, input_shape, self.params)}
        wires = [Wire("stem.conv", None, "stem"), Wire("stem.norm", "stem", "stem")]
        make, layers = bottleneck_block if self.bottleneck else basic_block, self.layers

        def make_block(inputs: int, index: int, stride: int) -> Block:
            return make(layers, inputs, width * 2**index, stride)

        channels, _ = add_blocks(stages, wires, self.blocks, "layer", width, make_block)
        return Network(self.name, input_shape, stages, channels, outputs, bias, neck=GlobalAveragePool(), wires=wires)


@MODELS.add("resnet-18")
class ResNet18(ResNet):
    """Residual network with 18 layers; 11 M parameters at width 64."""

    blocks = (2, 2, 2, 2)


@MODELS.add("resnet-34")
class ResNet34(ResNet):
    """Residual network with 34 layers; 21 M parameters at width 64."""

    blocks = (3, 4, 6, 3)


@MODELS.add("resnet-50")
class ResNet50(ResNet):
    """Residual network with 50 layers in bottleneck blocks; 24 M parameters at width 64."""

    blocks = (3, 4, 6, 3)
    bottleneck = True


@MODELS.add("resnet-18-3d")
class ResNet18For3d(ResNet):
    """ResNet-18 for volumes; 33 M parameters at width 64, 11 M with ACS convolutions."""

    Params = VolumeResNetParams
    blocks = (2, 2, 2, 2)
    dims = 3

    @property
    def layers(self) -> Layers:
        return VIEWED_VOLUMES if self.params.convolution == "acs" else VOLUMES


def _stem(layers: Layers, input_shape: Shape, params: ResNetParams) -> nn.Sequential:
    large = params.stem == "large" or (params.stem == "auto" and min(input_shape[1:]) >= 96)
    kernel, stride = (7, 2) if large else (3, 1)
    first = conv(layers, input_shape[0], params.width, kernel, stride)
    stem = stage(conv=first, norm=layers.norm(params.width), relu=nn.ReLU())
    if large:
        stem.add_module("pool", layers.pool(3, stride=2, padding=1))
    return stem
