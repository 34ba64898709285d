"""A data set in memory: images or vectors with class names, domains and, if the files name them, owners."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Dataset:
    """Training and test samples whose labels index `classes`.

    x: (n, C, H, W) or (n, C, D, H, W) images, uint8 (0..255) or float32 in [0, 1]; (n, d) vectors, float32, or uint8
    for counts, which are not scaled. y, domain, owner: (n,) int64.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    domain_train: Tensor
    domain_test: Tensor
    owners: tuple[str, ...] = ()
    owner_train: Tensor | None = None
    owner_test: Tensor | None = None

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            rows = len(getattr(self, f"x_{part}"))
            for field in ("y", "domain", "owner"):
                values = getattr(self, f"{field}_{part}")
                if values is not None and (values.shape != (rows,) or values.dtype != torch.int64):
                    raise ValueError(f"{field}_{part} must be int64 of shape ({rows},), not {tuple(values.shape)}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample: (C, H, W), (C, D, H, W) or (d,)."""
        return tuple(self.x_train.shape[1:])


def stored_divisor(x: Tensor) -> float:
    """Return the number that divides stored values to give inputs: 255 for uint8 images, else 1."""
    return 255.0 if x.dtype == torch.uint8 and x.dim() > 2 else 1.0
