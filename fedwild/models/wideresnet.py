"""Wide residual networks (Zagoruyko, Komodakis, BMVC 2016), pre-activation."""

from __future__ import annotations

from functools import partial

from pydantic import Field
from torch import Tensor, nn

from fedwild.hyper import Hyper
from fedwild.models.entry import ModelEntry, stage
from fedwild.models.graph import Wire
from fedwild.models.network import Network
from fedwild.models.shapes import Shape, check_spatial
from fedwild.models.spatial import GlobalAveragePool, conv, init_convolutions, norm


class WideResNetParams(Hyper):
    """Settings of the wide residual networks."""

    dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="Dropout between a block's two convolutions.")


class WideBlock(nn.Module):
    """norm-relu-conv-norm-relu-dropout-conv beside a skip, which is a 1x1 convolution where shapes differ."""

    def __init__(self, inputs: int, width: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.enter = stage(norm=norm(2, inputs), relu=nn.ReLU())
        self.body = stage(
            conv1=conv(2, inputs, width, 3, stride),
            norm=norm(2, width),
            relu=nn.ReLU(),
            dropout=nn.Dropout(dropout),
            conv2=conv(2, width, width, 3),
        )
        changes_shape = stride != 1 or inputs != width
        self.shortcut = conv(2, inputs, width, 1, stride) if changes_shape else None

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) to (n, width, h / stride, w / stride)."""
        entered = self.enter(x)
        # As in the original, a convolved shortcut starts after the activation and a plain one before it.
        skipped = x if self.shortcut is None else self.shortcut(entered)
        return self.body(entered) + skipped

    def space_after(self, path: str, space: str) -> str:
        """The space the block writes when it reads `space`: the same one unless the shortcut is a layer."""
        return space if self.shortcut is None else path

    def wires(self, path: str, space: str) -> list[Wire]:
        """The wiring of the block at `path` when it reads `space`."""
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


def wide_resnet(
    input_shape: Shape,
    outputs: int,
    bias: bool,
    params: WideResNetParams,
    *,
    name: str,
    depth: int,
    widen: int,
) -> Network:
    """A WideResNet of `depth` = 6n + 4 layers, `widen` times the base widths 16, 32, 64; any side length."""
    check_spatial(name, input_shape, dims=2)
    stages: dict[str, nn.Module] = {"stem": stage(conv=conv(2, input_shape[0], 16, 3))}
    wires = [Wire("stem.conv", None, "stem")]
    channels, space = 16, "stem"
    for index in range(3):
        blocks = nn.Sequential()
        for number in range((depth - 4) // 6):
            stride = 2 if index > 0 and number == 0 else 1
            width = 16 * 2**index * widen
            block = WideBlock(channels, width, stride, params.dropout)
            blocks.append(block)
            path = f"block{index + 1}.{number}"
            wires += block.wires(path, space)
            space = block.space_after(path, space)
            channels = width
        stages[f"block{index + 1}"] = blocks
    init_convolutions(*stages.values())
    neck = stage(norm=norm(2, channels), relu=nn.ReLU(), pool=GlobalAveragePool())
    wires.append(Wire("neck.norm", space, space))
    return Network(name, input_shape, stages, channels, outputs, bias, neck=neck, wires=wires)


def _entry(depth: int, widen: int, summary: str) -> ModelEntry:
    name = f"wrn-{depth}-{widen}"
    make = partial(wide_resnet, name=name, depth=depth, widen=widen)
    return ModelEntry(name, summary, WideResNetParams, make)


ENTRIES = (
    _entry(28, 10, "Wide residual network, 28 layers, 10 times as wide; 36 M."),
    _entry(16, 4, "Wide residual network, 16 layers, 4 times as wide; 2.7 M."),
)
