"""ACS convolutions for volumes (Yang et al.: Reinventing 2D convolutions for 3D images, IEEE JBHI 25(8), 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VIEWS = ("axial", "coronal", "sagittal")
"""By the axis of the volume along which a kernel has length 1: depth, height, width."""


class ACSConv(nn.Conv2d):
    """A convolution of volumes by 2-D kernels: a third of the outputs each in axial, coronal and sagittal view.

    Its tensors are those of the 2-D convolution, so a 2-D network's weights fit. Stride and padding apply to the two
    axes of the kernel; along the third one, there is the same stride and no padding.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, depth, height, width) to (n, outputs, depth', height', width')."""
        biases = (None,) * len(VIEWS) if self.bias is None else self.bias.tensor_split(len(VIEWS))
        parts = [
            self._view(x, weight, bias, axis)
            for axis, (weight, bias) in enumerate(zip(self.weight.tensor_split(len(VIEWS)), biases, strict=True))
            if len(weight)
        ]
        return torch.cat(parts, dim=1)

    def _view(self, x: Tensor, weight: Tensor, bias: Tensor | None, axis: int) -> Tensor:
        """Return the outputs of kernels (outputs, inputs, k, k) that have length 1 along an axis of the volume."""
        padding = [int(side) for side in self.padding]
        padding.insert(axis, 0)
        return F.conv3d(x, weight.unsqueeze(2 + axis), bias, stride=self.stride[0], padding=padding)
