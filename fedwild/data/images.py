"""Conversion of arrays in any usual layout to stored tensors: channels first, uint8 if exact, one size."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedwild.core.errors import UserError
from fedwild.core.memory import check_allocation

_CHUNK = 2048  # samples converted at a time, to keep float copies small
_MAX_CHUNK_VALUES = 1 << 26  # values converted at a time, whatever the size of a sample


def to_stored(array: np.ndarray, what: str) -> Tensor:
    """Return (n, d) vectors or (n, H, W[, C]), (n, C, H, W), (n, D, H, W[, C]) images as a stored tensor.

    `what` is the name of the array in errors.
    """
    if array.dtype.kind not in "uif":
        raise UserError(f"{what} has dtype {array.dtype}: use uint8, or floats in [0, 1] for images.")
    if array.ndim < 2 or array.ndim > 5 or 0 in array.shape[1:]:
        raise UserError(
            f"{what} has shape {array.shape}: use (n, d) vectors, (n, H, W[, C]) images or (n, D, H, W) volumes."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(np.nonzero(~np.isfinite(array).reshape(len(array), -1).all(1))[0][0])
        raise UserError(f"{what} has NaN or infinite values (first in sample {bad}): remove or repair these samples.")
    if array.ndim == 2:
        return torch.from_numpy(array if array.dtype == np.uint8 else np.ascontiguousarray(array, dtype=np.float32))
    return torch.from_numpy(np.ascontiguousarray(_channels_first(_as_pixels(array, what), what)))


def convert(x: Tensor, size: int | None, channels: int | None) -> Tensor:
    """Return images (n, C, ...) with this size and number of channels; vectors are returned unchanged."""
    if x.dim() == 2:
        if size is not None or channels is not None:
            raise UserError("data.size and data.channels are not allowed: the samples are vectors, not images.")
        return x
    has_channels = channels is None or x.shape[1] == channels
    has_size = size is None or all(side == size for side in x.shape[2:])
    if has_channels and has_size:
        return x
    sides = x.shape[2:] if size is None else (size,) * (x.dim() - 2)
    shape = (len(x), channels or x.shape[1], *sides)
    check_allocation(
        math.prod(shape) * x.element_size(),
        f"data.size = {size} for {len(x)} images",
        "decrease data.size or use fewer samples (data.train_samples, data.test_samples)",
    )
    out = torch.empty(shape, dtype=x.dtype)
    largest = max(math.prod(shape[1:]), math.prod(x.shape[1:]))
    step = max(1, min(_CHUNK, _MAX_CHUNK_VALUES // largest))
    for start in range(0, len(x), step):
        chunk = x[start : start + step]
        if channels == 1 and chunk.shape[1] == 3:
            chunk = grey(chunk)
        if not has_size:
            chunk = resize(chunk, tuple(sides))
        out[start : start + step] = chunk  # broadcasts a grey chunk to three channels
    return out


def grey(x: Tensor) -> Tensor:
    """Return the ITU-R 601 luma of (n, 3, ...) as (n, 1, ...) of the same dtype."""
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, *([1] * (x.dim() - 2)))
    return _cast((x.float() * weights).sum(1, keepdim=True), x.dtype)


def resize(x: Tensor, sides: tuple[int, ...]) -> Tensor:
    """Return images resized by bilinear interpolation, with antialiasing, or volumes by trilinear interpolation."""
    mode, smooth = ("trilinear", False) if x.dim() == 5 else ("bilinear", True)
    resized = functional.interpolate(x.float(), sides, mode=mode, align_corners=False, antialias=smooth)
    return _cast(resized, x.dtype)


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.round_().clamp_(0, 255).to(dtype) if dtype == torch.uint8 else x


def _as_pixels(array: np.ndarray, what: str) -> np.ndarray:
    """Return uint8 if all values are whole in 0..255 or multiples of 1/255 in [0, 1], else float32 in [0, 1]."""
    if array.dtype == np.uint8 or not array.size:
        return array.astype(np.uint8, copy=False)
    low, high = float(array.min()), float(array.max())
    if array.dtype.kind in "ui":
        if low < 0 or high > 255:
            raise UserError(f"{what} has pixel values from {low:g} to {high:g}: whole numbers must be in 0..255.")
        return array.astype(np.uint8)
    if low >= 0 and high <= 1:
        exact = _whole(array, 255.0)
        return array.astype(np.float32) if exact is None else exact
    exact = _whole(array, 1.0) if low >= 0 and high <= 255 else None
    if exact is None:
        raise UserError(
            f"{what} has pixel values from {low:g} to {high:g}: use uint8 or floats in [0, 1], and data.mean and "
            "data.std to normalise."
        )
    return exact


def _whole(array: np.ndarray, factor: float) -> np.ndarray | None:
    """Return array * factor as uint8 if it is whole up to rounding, else None; computed in chunks."""
    out = np.empty(array.shape, dtype=np.uint8)
    for start in range(0, len(array), _CHUNK):
        scaled = array[start : start + _CHUNK].astype(np.float32) * np.float32(factor)
        rounded = np.round(scaled)
        if np.abs(scaled - rounded).max() > 1e-3:
            return None
        out[start : start + _CHUNK] = rounded
    return out


def _channels_first(array: np.ndarray, what: str) -> np.ndarray:
    """Return an array with the channel axis second; it is added if there is none."""
    if array.ndim == 3:
        return array[:, None]
    if array.shape[-1] in (1, 3):
        return np.moveaxis(array, -1, 1)
    if array.shape[1] in (1, 3):
        return array
    if array.ndim == 4 and array.shape[-1] > 4:
        return array[:, None]
    raise UserError(f"{what} has shape {array.shape}: images need 1 or 3 channels.")
