"""Wide residual networks (Zagoruyko, Komodakis, BMVC 2016), pre-activation."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor, nn

from fedwild.core.settings import Settings
from fedwild.models.builder import NetworkBuilder, stage
from fedwild.models.graph import Wire
from fedwild.models.network import Network, Shape
from fedwild.models.registry import MODELS
from fedwild.models.resnet import IMAGES, Block, GlobalAveragePool, add_blocks, conv


class WideResNetParams(Settings):
    """Settings of the wide residual networks."""

    dropout: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="Dropout rate between the two convolutions of a block."
    )


class WideBlock(Block):
    """norm-relu-conv-norm-relu-dropout-conv plus a shortcut, which is a 1x1 convolution if the shapes differ."""

    def __init__(self, inputs: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.outputs = width
        self.enter = stage(norm=IMAGES.norm(inputs), relu=nn.ReLU())
        self.body = stage(
            conv1=conv(IMAGES, inputs, width, 3, stride),
            norm=IMAGES.norm(width),
            relu=nn.ReLU(),
            dropout=nn.Dropout(dropout),
            conv2=conv(IMAGES, width, width, 3),
        )
        changes_shape = stride != 1 or inputs != width
        self.shortcut = conv(IMAGES, inputs, width, 1, stride) if changes_shape else None

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, width, h / stride, w / stride)."""
        entered = self.enter(x)
        # As in the original: a shortcut with a convolution starts after the activation, an identity before it.
        skipped = x if self.shortcut is None else self.shortcut(entered)
        return self.body(entered) + skipped

    def wires(self, path: str, space: str) -> list[Wire]:
        target = self.space_after(path, space)
        inner = f"{path}.body.conv1"
        wires = [
            Wire(f"{path}.enter.norm", space, space),
            Wire(inner, space, inner),
            Wire(f"{path}.body.norm", inner, inner),
            Wire(f"{path}.body.conv2", inner, target),
        ]
        if self.shortcut is not None:
            wires.append(Wire(f"{path}.shortcut", space, target))
        return wires


class WideResNet(NetworkBuilder):
    """A WideResNet with `depth` = 6n + 4 layers and `widen` times the widths 16, 32, 64, for inputs of any size."""

    Params = WideResNetParams
    depth: ClassVar[int]
    widen: ClassVar[int]

    def build(self, input_shape: Shape, outputs: int, bias: bool) -> Network:
        self.check_spatial(input_shape, dims=2)
        stages: dict[str, nn.Module] = {"stem": stage(conv=conv(IMAGES, input_shape[0], 16, 3))}
        wires = [Wire("stem.conv", None, "stem")]

        def make_block(inputs: int, index: int, stride: int) -> Block:
            return WideBlock(inputs, 16 * 2**index * self.widen, stride, self.params.dropout)

        channels, space = add_blocks(stages, wires, [(self.depth - 4) // 6] * 3, "block", 16, make_block)
        neck = stage(norm=IMAGES.norm(channels), relu=nn.ReLU(), pool=GlobalAveragePool())
        wires.append(Wire("neck.norm", space, space))
        return Network(self.name, input_shape, stages, channels, outputs, bias, neck=neck, wires=wires)


@MODELS.add("wrn-28-10")
class WideResNet28x10(WideResNet):
    """Wide residual network with 28 layers, 10 times as wide; 36 M parameters."""

    depth, widen = 28, 10


@MODELS.add("wrn-16-4")
class WideResNet16x4(WideResNet):
    """Wide residual network with 16 layers, 4 times as wide; 2.7 M parameters."""

    depth, widen = 16, 4
