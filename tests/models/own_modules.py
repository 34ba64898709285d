"""Modules as users write them, named by import path."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from fedwild.core.settings import Settings
from fedwild.models import Network, NetworkBuilder, chain_wires

A_NUMBER = 3


class PlainNet(nn.Module):
    """Takes its sizes by name and ends in a linear layer."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(input_shape[0], width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.classifier = nn.Sequential(nn.Dropout(0.5), nn.Linear(width, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.norm(self.conv(x)).relu().mean((2, 3)))


class HeadDefinedFirst(nn.Module):
    """Has ten classes, registers its head before its body, and returns log-probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 10)
        self.body = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.head(self.body(x).relu()), dim=1)


class HeadNotLast(nn.Module):
    """Adds something to the output of the last linear layer."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.fc = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + x.sum(1, keepdim=True)


class UnusedLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x


class NoLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).flatten(1)


class OwnNetwork(Network):
    """A fedwild Network that always has three outputs."""

    def __init__(self, input_shape: tuple[int, ...], **settings: Any) -> None:
        stages = {"first": nn.Linear(input_shape[0], settings["hidden"])}
        super().__init__("own", input_shape, stages, settings["hidden"], 3, wires=chain_wires(stages))


class OwnParams(Settings):
    hidden: int = Field(8, ge=1, description="Width of the hidden layer.")


class OwnBuilder(NetworkBuilder):
    """A network with one hidden layer."""

    Params = OwnParams

    def build(self, input_shape: tuple[int, ...], outputs: int, bias: bool) -> Network:
        stages = {"first": nn.Linear(input_shape[0], self.params.hidden)}
        return Network(self.name, input_shape, stages, self.params.hidden, outputs, bias, wires=chain_wires(stages))


class BareLinear(nn.Linear):
    """A linear layer that is its own head."""

    def __init__(self, input_shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(input_shape[0], outputs)


class NeedsDepth(nn.Linear):
    def __init__(self, outputs: int, depth: int) -> None:
        super().__init__(depth, outputs)


class Failing(nn.Module):
    def __init__(self, outputs: int) -> None:
        raise RuntimeError("no weights here")


def plain_function(outputs: int) -> nn.Module:
    raise AssertionError("a function must never be called")


class FrozenFirst(NetworkBuilder):
    """An MLP whose first layer is frozen at a fixed value."""

    class Params(Settings):
        pass

    def build(self, input_shape: tuple[int, ...], outputs: int, bias: bool) -> Network:
        width = torch.Size(input_shape).numel()
        first, second = nn.Linear(width, 8), nn.Linear(8, 6)
        with torch.no_grad():
            first.weight.copy_(torch.linspace(-0.2, 0.2, 8 * width).reshape(8, width))
        first.requires_grad_(False)
        stages = {
            "fc1": nn.Sequential(nn.Flatten(), first, nn.ReLU()),
            "fc2": nn.Sequential(second, nn.ReLU()),
        }
        return Network("frozen-first", input_shape, stages, 6, outputs, bias, wires=chain_wires(stages))
