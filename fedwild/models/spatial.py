"""Layers of the residual networks, for images (2 sides) and volumes (3 sides)."""

from __future__ import annotations

from torch import Tensor, nn

_CONV: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
_NORM: dict[int, type[nn.BatchNorm2d] | type[nn.BatchNorm3d]] = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_POOL: dict[int, type[nn.MaxPool2d] | type[nn.MaxPool3d]] = {2: nn.MaxPool2d, 3: nn.MaxPool3d}


def conv(dims: int, inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    """Return a convolution without bias, since a norm follows, that only its stride makes smaller."""
    return _CONV[dims](inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def norm(dims: int, width: int) -> nn.Module:
    """Return a batch norm over (n, width, *sides)."""
    return _NORM[dims](width)


def max_pool(dims: int) -> nn.Module:
    """Return the overlapping max-pool of the large ResNet stem, which halves every side."""
    return _POOL[dims](3, stride=2, padding=1)


class GlobalAveragePool(nn.Module):
    """(n, c, *sides) to (n, c), for sides of any length."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=tuple(range(2, x.dim())))


def init_convolutions(*modules: nn.Module) -> None:
    """Initialise all convolutions by He's method with fan-out, as usual for residual networks."""
    for module in modules:
        for part in module.modules():
            if isinstance(part, nn.Conv2d | nn.Conv3d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
