"""Every built-in network in a small size, for tests that all networks must pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedwild.models import Network, build

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "simple-cnn": ((1, 12, 8), {}),
    "digit-cnn": ((3, 8, 8), {}),
    "digit-five-cnn": ((3, 8, 8), {"width": 0.1}),
    "vgg-9": ((3, 16, 8), {}),
    "resnet-18": ((3, 16, 16), {"width": 8}),
    "resnet-34": ((1, 16, 12), {"width": 4}),
    "resnet-50": ((3, 16, 16), {"width": 4}),
    "wrn-28-10": ((3, 4, 4), {}),
    "wrn-16-4": ((3, 8, 8), {}),
    "resnet-18-3d": ((1, 8, 8, 8), {"width": 4}),
    "mlp": ((20,), {"hidden": [16, 12]}),
    "word-lstm": ((20,), {"embedding": 6, "hidden": 5, "length": 8}),
}


WITH_GRAPH = [name for name in CASES if name != "word-lstm"]
"""Networks whose neurons can be aligned: a recurrent layer has no place in the layer graph."""


def make(name: str, outputs: int = 5, bias: bool = True) -> Network:
    """Return a network, initialised from a fixed seed."""
    torch.manual_seed(0)
    shape, params = CASES[name]
    return build(name, shape, outputs, bias, params)


def inputs(network: Network, count: int = 3) -> Tensor:
    """Return the same random inputs (count, *input_shape) on every call."""
    return torch.randn(count, *network.input_shape, generator=torch.Generator().manual_seed(1))


def stir_norms(network: nn.Module) -> None:
    """Give batch-norm layers parameters and statistics that differ from channel to channel."""
    for part in network.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -0.5, 0.5)
            assert part.running_mean is not None and part.running_var is not None
            part.running_mean.uniform_(-0.5, 0.5)
            part.running_var.uniform_(0.5, 1.5)
