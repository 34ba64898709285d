"""Convolution and 2x2 max-pooling faster than PyTorch's on a CPU, with the same results and gradients.

`MaxPool2x2`: PyTorch's pooling takes longer than the convolution before it; the maximum of strided views takes a
tenth of that.

`ConvPoolReLU`: the four pixels of a pooling window are the same kernel shifted by a pixel. The four shifted kernels,
stacked, times the patches that begin at every second pixel give all four in one matrix product; pooling is a maximum
over channel groups. The gradient for the input, by far the slowest part of an adversarial step in PyTorch, is another
product and a few shifted sums. Samples lie innermost in memory, so that every copy and sum runs over long rows; to the
outside tensors are (n, c, h, w) as ever, and layers after one another pass this memory order on without a copy.

Ties go to the first pixel of a window in reading order, as in PyTorch. Gradients of gradients are only defined in
the `plain` formulation.
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
# Patches are copied out; for more samples at a time they would no longer fit the processor's cache.
LARGEST_BATCH = 256

_plain = False


@contextmanager
def plain() -> Iterator[None]:
    """Inside, PyTorch's own operations are used: for gradients of gradients, `vmap`, and comparison."""
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
            raise ValueError(f"ConvPoolReLU needs an odd kernel, not {kernel}.")
        self.padding = padding
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=padding)

    def forward(self, x: Tensor) -> Tensor:
        if _plain or x.device.type != "cpu":
            return F.relu(F.max_pool2d(self.conv(x), 2))
        if self.padding:
            x = F.pad(x, (self.padding,) * 4)
        parts = [_ConvPoolReLU.apply(part, self.conv.weight, self.conv.bias) for part in x.split(LARGEST_BATCH)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


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
        _refuse_second_derivative()
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
    """Inside, tensors are (c, h, w, n): `_inward` and `_outward` change the view, and copy only where they must."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kernels = shifted(weight)
        inner = _inward(x)
        cut = patches(inner, kernels.shape[-1])
        pixels = (kernels.flatten(1) @ cut.flatten(0, 2).flatten(1)).view(4, len(bias), *cut.shape[3:])
        d, c, b, a = pixels.unbind()
        top = torch.maximum(torch.maximum(a, b), torch.maximum(c, d))
        # The four pixels have the same bias, so it can wait until one of them is chosen.
        top.add_(bias.view(-1, 1, 1, 1)).clamp_min_(0)
        ctx.save_for_backward(cut, kernels, pixels, top)
        ctx.sides = inner.shape[1:3]
        return _outward(top)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        _refuse_second_derivative()
        cut, kernels, pixels, top = ctx.saved_tensors
        passed = torch.ops.aten.threshold_backward(_inward(gradient), top, 0.0)
        spread = to_winners(passed, pixels)
        for_x = for_weight = for_bias = None
        if ctx.needs_input_grad[0]:
            for_x = _outward(input_gradient(spread, kernels, ctx.sides))
        if ctx.needs_input_grad[1]:
            product = spread.flatten(0, 1).flatten(1) @ cut.flatten(0, 2).flatten(1).t()
            for_weight = unshifted(product.view_as(kernels))
        if ctx.needs_input_grad[2]:
            for_bias = passed.sum((1, 2, 3))
        return for_x, for_weight, for_bias


def _refuse_second_derivative() -> None:
    """Refuse `create_graph=True` at once: `once_differentiable` lets `autograd.grad` leave out such terms silently."""
    if torch.is_grad_enabled():
        raise RuntimeError("Gradients of gradients are only defined inside fedwild.models.kernels.plain().")


def shifted(weight: Tensor) -> Tensor:
    """The kernels (c, C, k, k) moved to each pixel of a window, last pixel first: (4c, C, k + 1, k + 1)."""
    size = weight.shape[-1] + 1
    moved = F.pad(weight, (1, 1, 1, 1)).unfold(2, size, 1).unfold(3, size, 1)
    return moved.permute(2, 3, 0, 1, 4, 5).flatten(0, 2)


def unshifted(gradient: Tensor) -> Tensor:
    """The gradient of `shifted`: (4c, C, k + 1, k + 1) back to (c, C, k, k)."""
    k = gradient.shape[-1] - 1
    d, c, b, a = gradient.chunk(4)
    return a[..., :k, :k] + b[..., :k, 1:] + c[..., 1:, :k] + d[..., 1:, 1:]


def patches(x: Tensor, size: int) -> Tensor:
    """The size x size patches of x (C, H, W, n) at every second pixel: a copy (C, size, size, h, w, n)."""
    channels, height, width, n = x.shape
    c, h, w, _ = x.stride()
    places = (height - size) // 2 + 1, (width - size) // 2 + 1
    return x.as_strided((channels, size, size, *places, n), (c, h, w, 2 * h, 2 * w, 1)).contiguous()


def to_winners(gradient: Tensor, pixels: Tensor) -> Tensor:
    """A pooled gradient (c, h, w, n) given to the first largest of the pixels (4, c, h, w, n) of its window."""
    # `threshold_backward(g, d, 0)` is g where d > 0, else 0, without the detour over truth values.
    where_positive = torch.ops.aten.threshold_backward
    d, c, b, a = pixels.unbind()
    spread = torch.empty_like(pixels)
    to_d, to_c, to_b, to_a = spread.unbind()
    lower = where_positive(gradient, torch.maximum(c, d).sub_(torch.maximum(a, b)), 0.0)
    upper = gradient - lower
    where_positive.grad_input(upper, b - a, 0.0, grad_input=to_b)
    where_positive.grad_input(lower, d - c, 0.0, grad_input=to_d)
    torch.sub(upper, to_b, out=to_a)
    torch.sub(lower, to_d, out=to_c)
    return spread


def input_gradient(spread: Tensor, kernels: Tensor, sides: tuple[int, int]) -> Tensor:
    """The gradient (C, H, W, n) for the input, given that of the pixels (4, c, h, w, n).

    In steps of two pixels a (k + 1)-wide kernel reaches (k + 1) / 2 blocks of 2x2 pixels far: one product gives what
    each place adds to each of these blocks, and shifted sums put it there.
    """
    outputs, channels, size, _ = kernels.shape
    reach = size // 2
    _, _, height, width, n = spread.shape
    blocks = kernels.view(outputs, channels, reach, 2, reach, 2).permute(2, 4, 1, 3, 5, 0).reshape(-1, outputs)
    shares = (blocks @ spread.view(outputs, -1)).view(reach, reach, 4 * channels, height, width, n)
    rows, columns = height + reach - 1, width + reach - 1
    total = spread.new_zeros(4 * channels, rows, columns, n)
    for i in range(reach):
        for j in range(reach):
            total[:, i : i + height, j : j + width].add_(shares[i, j])
    total = total.view(channels, 2, 2, rows, columns, n).permute(0, 3, 1, 4, 2, 5)
    result = total.reshape(channels, 2 * rows, 2 * columns, n)
    if result.shape[1:3] == sides:
        return result
    # Of an odd side the last line is never read.
    return F.pad(result, (0, 0, 0, sides[1] - 2 * columns, 0, sides[0] - 2 * rows))


def _inward(x: Tensor) -> Tensor:
    return x.permute(1, 2, 3, 0).contiguous()


def _outward(x: Tensor) -> Tensor:
    return x.permute(3, 0, 1, 2)
