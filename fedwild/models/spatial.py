"""Parts shared by the residual networks, for images (2 sides) and volumes (3 sides)."""

from __future__ import annotations

from torch import Tensor, nn

_CONV: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
_NORM: dict[int, type[nn.BatchNorm2d] | type[nn.BatchNorm3d]] = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
_POOL: dict[int, type[nn.MaxPool2d] | type[nn.MaxPool3d]] = {2: nn.MaxPool2d, 3: nn.MaxPool3d}


def conv(dims: int, inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    """A convolution without bias (a norm follows) that keeps the sides, up to the stride."""
    return _CONV[dims](inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def norm(dims: int, width: int) -> nn.Module:
    """Batch normalisation over (n, width, *sides)."""
    return _NORM[dims](width)


def max_pool(dims: int) -> nn.Module:
    """The overlapping max-pool of the large ResNet stem: halves every side."""
    return _POOL[dims](3, stride=2, padding=1)


class GlobalAveragePool(nn.Module):
    """(n, c, *sides) to (n, c), for sides of any length."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=tuple(range(2, x.dim())))


def init_convolutions(*modules: nn.Module) -> None:
    """He initialisation by fan-out, as residual networks are usually trained from."""
    for module in modules:
        for part in module.modules():
            if isinstance(part, nn.Conv2d | nn.Conv3d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
