"""Convolution and 2x2 max-pooling that run faster on a CPU than PyTorch's, with the same results and gradients.

`MaxPool2x2`: PyTorch's pooling takes longer than the convolution before it; the maximum of strided views takes a
tenth of that time.

`ConvPoolReLU`: the four pixels of a pooling window come from the same kernel, shifted by one pixel. The four shifted
kernels are stacked and multiplied with the patches that start at every second pixel: one matrix product gives all
four pixels, and pooling is a maximum over channel groups. Patches are copied along rows only; along columns they
overlap in memory. The gradient for the input, by far the slowest part of an adversarial step in PyTorch, is another
such product. The sample axis is innermost in memory, so that copies and sums run over long contiguous ranges. Inputs
and outputs are (n, c, h, w) as usual, and consecutive layers pass this memory order on without a copy.

As in PyTorch, the first pixel of a window in reading order wins a tie. Second derivatives are defined only inside
`plain()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WINDOW = ((0, 0), (0, 1), (1, 0), (1, 1))
"""The pixels of a pooling window, in reading order."""
# The copied patches of a larger batch would no longer fit into the processor's cache.
MAX_BATCH = 256

_plain = False


@contextmanager
def plain() -> Iterator[None]:
    """Use PyTorch's own operations inside the block: for second derivatives, `vmap` and comparisons."""
    global _plain
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


class MaxPool2x2(nn.Module):
    """`nn.MaxPool2d(2)`: (n, c, h, w) to (n, c, h // 2, w // 2)."""

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = F.max_pool2d(x, 2) if _plain or x.device.type != "cpu" else _MaxPool.apply(x)
        return pooled


class ConvPoolReLU(nn.Module):
    """A convolution with an odd kernel, 2x2 max-pooling and ReLU: (n, C, h, w) to (n, c, h', w')."""

    def __init__(self, inputs: int, outputs: int, kernel: int, padding: int = 0) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"ConvPoolReLU requires an odd kernel size, not {kernel}.")
        self.padding = padding
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        if _plain or x.device.type != "cpu":
            return F.relu(F.max_pool2d(self.conv(x), 2))
        if self.padding:
            x = F.pad(x, (self.padding,) * 4)
        if len(x) <= MAX_BATCH:
            result: Tensor = _ConvPoolReLU.apply(x, self.conv.weight, self.conv.bias)
            return result
        return torch.cat([_ConvPoolReLU.apply(part, self.conv.weight, self.conv.bias) for part in x.split(MAX_BATCH)])


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        even = x[..., : x.shape[-2] // 2 * 2, : x.shape[-1] // 2 * 2]
        rows = torch.maximum(even[..., 0::2, :], even[..., 1::2, :])
        top = torch.maximum(rows[..., 0::2], rows[..., 1::2])
        ctx.save_for_backward(x, top)
        return top

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _reject_second_derivative()
        x, top = ctx.saved_tensors
        height, width = 2 * top.shape[-2], 2 * top.shape[-1]
        exact = x.shape[-2:] == (height, width)
        result = torch.empty_like(x) if exact else torch.zeros_like(x)
        free = torch.ones_like(top, dtype=torch.bool)
        for i, j in WINDOW:
            wins = (x[..., i:height:2, j:width:2] == top) & free
            result[..., i:height:2, j:width:2] = gradient * wins
            free &= ~wins
        return result


class _ConvPoolReLU(torch.autograd.Function):
    """Internally, tensors are (h, c, w, n): `_inward` and `_outward` change the view and copy only if necessary."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kernels = shift_kernels(weight)
        size = kernels.shape[-1]
        inner = _inward(x)
        strips = cut_strips(inner, size)
        places, across = ((side - size) // 2 + 1 for side in x.shape[-2:])
        as_rows = kernels.permute(0, 2, 1, 3).reshape(1, len(kernels), -1)
        pixels = torch.bmm(as_rows.expand(places, -1, -1), windows(strips, size, 2))
        pixels = pixels.view(places, 4, len(bias), across, len(x))
        d, c, b, a = pixels.unbind(1)
        upper, lower = torch.maximum(a, b), torch.maximum(c, d)
        # The four pixels share one bias, so it is added to their maximum only.
        top = torch.maximum(upper, lower).add_(bias.view(-1, 1, 1)).clamp_min_(0)
        ctx.save_for_backward(strips, kernels, pixels, lower.sub_(upper), top)
        ctx.sides = x.shape[-2:]
        return _outward(top)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        _reject_second_derivative()
        strips, kernels, pixels, rise, top = ctx.saved_tensors
        size = kernels.shape[-1]
        passed = torch.ops.aten.threshold_backward(_inward(gradient), top, 0.0)
        spread = to_winners(passed, pixels, rise, margin=size // 2 - 1)
        for_x = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_x = _outward(input_gradient(spread, kernels, ctx.sides))
        if ctx.needs_input_grad[1]:
            inside = spread[size // 2 - 1 :][: len(pixels)].flatten(3).flatten(1, 2)
            product = torch.bmm(inside, windows(strips, size, 2).transpose(1, 2)).sum(0)
            for_weight = unshift_kernels(product.view(len(kernels), size, -1, size).transpose(1, 2))
        if ctx.needs_input_grad[2]:
            for_bias = passed.sum((0, 2, 3))
        return for_x, for_weight, for_bias


def _reject_second_derivative() -> None:
    """Reject `create_graph=True`: with `once_differentiable`, `autograd.grad` would omit such terms silently."""
    if torch.is_grad_enabled():
        raise RuntimeError("Second derivatives are defined only inside `with fedwild.models.kernels.plain():`.")


def shift_kernels(weight: Tensor) -> Tensor:
    """Return kernels (c, C, k, k) shifted to each pixel of a window, last pixel first: (4c, C, k + 1, k + 1)."""
    size = weight.shape[-1] + 1
    moved = F.pad(weight, (1, 1, 1, 1)).unfold(2, size, 1).unfold(3, size, 1)
    return moved.permute(2, 3, 0, 1, 4, 5).flatten(0, 2)


def unshift_kernels(gradient: Tensor) -> Tensor:
    """Return the gradient of `shift_kernels`: (4c, C, k + 1, k + 1) to (c, C, k, k)."""
    k = gradient.shape[-1] - 1
    d, c, b, a = gradient.chunk(4)
    return a[..., :k, :k] + b[..., :k, 1:] + c[..., 1:, :k] + d[..., 1:, 1:]


def cut_strips(x: Tensor, size: int) -> Tensor:
    """Return the strips of `size` pixels of each row of x (H, C, W, n) at every second pixel: (H, C * size, w * n)."""
    height, channels, width, n = x.shape
    h, c, w, _ = x.stride()
    places = (width - size) // 2 + 1
    pieces = x.as_strided((height, channels, size, places, n), (h, c, w, 2 * w, 1)).contiguous()
    return pieces.view(height, channels * size, places * n)


def windows(rows: Tensor, size: int, step: int) -> Tensor:
    """Return every `step`-th window of `size` rows (H, c, m) as a matrix, without a copy: (h, size * c, m)."""
    count, height, length = rows.shape
    places = (count - size) // step + 1
    return rows.as_strided((places, size * height, length), (step * height * length, length, 1))


def to_winners(gradient: Tensor, pixels: Tensor, rise: Tensor, margin: int) -> Tensor:
    """Return the pooled gradient (h, c, w, n) at the first largest of the pixels (h, 4, c, w, n) of each window.

    `rise` (h, c, w, n) is the larger of the lower two pixels minus the larger of the upper two. The result has
    `margin` rows of zeros above and below: (h + 2 * margin, 4, c, w, n).
    """
    # `threshold_backward(g, d, 0)` is g where d > 0, else 0, without a tensor of booleans.
    where_positive = torch.ops.aten.threshold_backward
    d, c, b, a = pixels.unbind(1)
    spread = pixels.new_empty(len(pixels) + 2 * margin, *pixels.shape[1:])
    spread[:margin] = 0
    spread[margin + len(pixels) :] = 0
    to_d, to_c, to_b, to_a = spread[margin : margin + len(pixels)].unbind(1)
    lower = where_positive(gradient, rise, 0.0)
    upper = gradient - lower
    where_positive.grad_input(upper, b - a, 0.0, grad_input=to_b)
    where_positive.grad_input(lower, d - c, 0.0, grad_input=to_d)
    torch.sub(upper, to_b, out=to_a)
    torch.sub(lower, to_d, out=to_c)
    return spread


def input_gradient(spread: Tensor, kernels: Tensor, sides: tuple[int, int]) -> Tensor:
    """Return the gradient (H, C, W, n) for the input from that of the pixels (h, 4, c, w, n) with its margins.

    A kernel covers `reach` pairs of rows. The gradient of a pair is the product of the flipped kernels with the
    `reach` rows of pixels that read it. Along a row, shifted sums do the same.
    """
    outputs, channels, size, _ = kernels.shape
    reach = size // 2
    _, _, _, width, n = spread.shape
    flipped = kernels.view(outputs, channels, reach, 2, size).flip(2).permute(3, 1, 4, 2, 0)
    around = windows(spread.flatten(3).flatten(1, 2), reach, 1)
    pieces = torch.bmm(flipped.reshape(1, 2 * channels * size, -1).expand(len(around), -1, -1), around)
    pieces = pieces.view(2 * len(around), channels, reach, 2, width, n)
    result = spread.new_zeros(2 * len(around), channels, width + reach - 1, 2, n)
    for k in range(reach):
        result[:, :, k : k + width].add_(pieces[:, :, k].transpose(2, 3))
    result = result.flatten(2, 3)
    height, across = sides[0] - len(result), sides[1] - result.shape[2]
    # The last row or column of an odd side is never read.
    return F.pad(result, (0, 0, 0, across, 0, 0, 0, height)) if height or across else result


def _inward(x: Tensor) -> Tensor:
    return x.permute(2, 1, 3, 0).contiguous()


def _outward(x: Tensor) -> Tensor:
    return x.permute(3, 1, 0, 2)
