"""Residual networks (He et al., CVPR 2016) for images and volumes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from fedwild.core.settings import Settings
from fedwild.models.builder import NetworkBuilder, stage
from fedwild.models.graph import Wire
from fedwild.models.network import Network
from fedwild.models.registry import MODELS
from fedwild.models.shapes import Shape, check_spatial
from fedwild.models.spatial import GlobalAveragePool, conv, init_convolutions, max_pool, norm


class ResNetParams(Settings):
    """Settings of the residual networks."""

    width: int = Field(
        default=64, ge=1, description="Channels of the stem; the four stages have 1, 2, 4 and 8 times as many."
    )
    stem: Literal["auto", "small", "large"] = Field(
        default="auto",
        description="small: 3x3 with stride 1; large: 7x7 with stride 2 and max-pool; auto: small for sides below 96.",
    )


class ResidualBlock(nn.Module):
    """`relu(body(x) + shortcut(x))`; the shortcut is a 1x1 convolution if the shapes differ."""

    def __init__(self, dims: int, inputs: int, outputs: int, stride: int, body: nn.Sequential) -> None:
        super().__init__()
        self.body = body
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = stage(conv=conv(dims, inputs, outputs, 1, stride), norm=norm(dims, outputs))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, *sides) to (n, outputs, *sides / stride)."""
        skipped = x if self.shortcut is None else self.shortcut(x)
        return self.relu(self.body(x) + skipped)

    def space_after(self, path: str, space: str) -> str:
        """Return the space that the block writes if it reads `space`: the same one unless the shortcut is a layer."""
        return space if self.shortcut is None else path

    def wires(self, path: str, space: str) -> list[Wire]:
        """Return the wires of the block at `path` if it reads `space`."""
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
            wires += [
                Wire(f"{path}.shortcut.conv", space, target),
                Wire(f"{path}.shortcut.norm", target, target),
            ]
        return wires


def basic_block(dims: int, inputs: int, width: int, stride: int) -> ResidualBlock:
    """Return a block of two 3x3 convolutions."""
    body = stage(
        conv1=conv(dims, inputs, width, 3, stride),
        norm1=norm(dims, width),
        relu1=nn.ReLU(),
        conv2=conv(dims, width, width, 3),
        norm2=norm(dims, width),
    )
    return ResidualBlock(dims, inputs, width, stride, body)


def bottleneck_block(dims: int, inputs: int, width: int, stride: int) -> ResidualBlock:
    """Return a block of 1x1, 3x3 (strided) and 1x1 convolutions with 4 * `width` output channels."""
    body = stage(
        conv1=conv(dims, inputs, width, 1),
        norm1=norm(dims, width),
        relu1=nn.ReLU(),
        conv2=conv(dims, width, width, 3, stride),
        norm2=norm(dims, width),
        relu2=nn.ReLU(),
        conv3=conv(dims, width, 4 * width, 1),
        norm3=norm(dims, 4 * width),
    )
    return ResidualBlock(dims, inputs, 4 * width, stride, body)


class ResNet(NetworkBuilder):
    """A residual network with `blocks[i]` blocks in stage `layer{i+1}`, for inputs of any size."""

    Params = ResNetParams
    blocks: ClassVar[tuple[int, ...]]
    bottleneck: ClassVar[bool] = False
    dims: ClassVar[int] = 2

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        check_spatial(self.name, input_shape, self.dims)
        width = self.params.width
        stages: dict[str, nn.Module] = {"stem": _stem(self.dims, input_shape, self.params)}
        wires = [Wire("stem.conv", None, "stem"), Wire("stem.norm", "stem", "stem")]
        make = bottleneck_block if self.bottleneck else basic_block
        channels, space = width, "stem"
        for index, count in enumerate(self.blocks):
            layer = nn.Sequential()
            for number in range(count):
                stride = 2 if index > 0 and number == 0 else 1
                block = make(self.dims, channels, width * 2**index, stride)
                layer.append(block)
                path = f"layer{index + 1}.{number}"
                wires += block.wires(path, space)
                space = block.space_after(path, space)
                channels = width * 2**index * (4 if self.bottleneck else 1)
            stages[f"layer{index + 1}"] = layer
        init_convolutions(*stages.values())
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
    """ResNet-18 with 3x3x3 convolutions for volumes; 33 M parameters at width 64."""

    blocks = (2, 2, 2, 2)
    dims = 3


def _stem(dims: int, input_shape: Shape, params: ResNetParams) -> nn.Sequential:
    large = params.stem == "large" or (params.stem == "auto" and min(input_shape[1:]) >= 96)
    kernel, stride = (7, 2) if large else (3, 1)
    stem = stage(
        conv=conv(dims, input_shape[0], params.width, kernel, stride),
        norm=norm(dims, params.width),
        relu=nn.ReLU(),
    )
    if large:
        stem.add_module("pool", max_pool(dims))
    return stem
