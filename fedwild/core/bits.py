"""Boolean masks as packed bits: eight elements per byte, as clients send them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor


def pack_bits(masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return each mask as bytes (ceil(n / 8),), eight elements in each."""
    return {name: torch.from_numpy(np.packbits(mask.numpy())) for name, mask in masks.items()}


def unpack_bits(bits: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the masks of packed bits, with the shapes of the tensors of the same names in `like`."""
    return {
        name: torch.from_numpy(np.unpackbits(code.numpy(), count=like[name].numel())).bool().view(like[name].shape)
        for name, code in bits.items()
    }


def packed_spec(like: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return names, shapes and types of the packed masks for these tensors of `like`, without values."""
    return {name: torch.empty(-(-like[name].numel() // 8), dtype=torch.uint8, device="meta") for name in names}
