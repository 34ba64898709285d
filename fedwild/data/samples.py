"""Samples of a client: rows of a shared tensor, read as batches of float inputs and class ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwild.core.errors import UserError
from fedwild.data.augment import augment_batch, padding
from fedwild.data.dataset import Dataset, stored_divisor
from fedwild.data.settings import DataSettings

NO_CLASS = -1
Level = float | Sequence[float] | None


@dataclass(frozen=True)
class Normalisation:
    """Turns pixel values p, usually in [0, 1], into inputs (p - mean) / std; both broadcast over a batch."""

    mean: Tensor
    std: Tensor

    def to_inputs(self, pixels: Tensor) -> Tensor:
        return (pixels - self.mean.to(pixels)) / self.std.to(pixels)

    def to_pixels(self, inputs: Tensor) -> Tensor:
        return inputs * self.std.to(inputs) + self.mean.to(inputs)


class Samples:
    """Some rows of `x`, without a copy.

    x: (N, ...) the whole stored tensor; index: (n,) int64 rows of it; y: (n,) int64 class ids of these rows, or
    `NO_CLASS`. mean, std: one number, or one per channel (images) or feature (vectors).
    """

    def __init__(
        self, x: Tensor, y: Tensor, index: Tensor, mean: Level = None, std: Level = None, augment: Sequence[str] = ()
    ) -> None:
        if y.shape != index.shape or y.dim() != 1:
            raise ValueError(f"y {tuple(y.shape)} and index {tuple(index.shape)} must have one axis of equal length")
        self.x, self.y, self.index = x, y, index
        self.mean, self.std, self.augment = mean, std, tuple(augment)
        self._divisor = stored_divisor(x)
        self.normalisation = normalisation_of(x, mean, std)
        self._factor, self._shift = _affine(self.normalisation, self._divisor)
        if self.augment and (x.dim() < 4 or min(x.shape[-2:]) <= padding(x)):
            raise UserError(
                f"data.augment = {list(self.augment)} is not allowed: it requires images larger than {padding(x)} "
                f"pixels, and these samples have shape {tuple(x.shape[1:])}."
            )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def classes(self) -> list[int]:
        """The class ids that occur, sorted."""
        return [int(c) for c in torch.unique(self.y)]

    def batches(
        self, batch_size: int, generator: torch.Generator | None = None, augment: bool = False
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield x float32 (b, ...) and y int64 (b,), each sample once, shuffled if a generator is given."""
        index, y = self.index, self.y
        if generator is not None:
            order = torch.randperm(len(index), generator=generator)
            index, y = index[order], y[order]
        kinds = self.augment if augment else ()
        if kinds and generator is None:
            raise ValueError("augmented batches require a generator")
        for rows, labels in zip(index.split(batch_size), y.split(batch_size), strict=True):
            if not len(rows):
                return
            stored = self.x.index_select(0, rows)
            if kinds and generator is not None:
                stored = augment_batch(stored, kinds, generator)
            yield self._inputs(stored), labels

    def all(self, limit: int | None = None) -> tuple[Tensor, Tensor]:
        """Return the first `limit` samples, or all, as one float batch in order."""
        return self._inputs(self.x.index_select(0, self.index[:limit])), self.y[:limit]

    def take(self, indices: Tensor | np.ndarray | Sequence[int]) -> Samples:
        """Return the samples at these positions."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        return self._with(self.y[chosen], self.index[chosen])

    def join(self, other: Samples) -> Samples:
        """Return these samples followed by others of the same stored tensor."""
        if other.x is not self.x:
            raise ValueError("samples of two tensors cannot be joined")
        return self._with(torch.cat([self.y, other.y]), torch.cat([self.index, other.index]))

    def with_labels(self, y: Tensor) -> Samples:
        """Return the same samples with other class ids (n,)."""
        return self._with(y, self.index)

    def _with(self, y: Tensor, index: Tensor) -> Samples:
        return Samples(self.x, y, index, self.mean, self.std, self.augment)

    def _inputs(self, stored: Tensor) -> Tensor:
        """Return stored rows, which this call may change, as normalised float32."""
        x = stored if stored.dtype == torch.float32 else stored.float()
        if self._factor is not None:
            return x.mul_(self._factor).add_(self._shift)
        return x if self._divisor == 1 else x.div_(self._divisor)


def samples_of(
    dataset: Dataset,
    index: np.ndarray | Tensor,
    part: str = "train",
    ids: Mapping[str, int] | None = None,
    data: DataSettings | None = None,
) -> Samples:
    """Return rows of the training or test part, labelled by `ids` (class name to id; default: as stored)."""
    x, y = (dataset.x_train, dataset.y_train) if part == "train" else (dataset.x_test, dataset.y_test)
    rows = torch.as_tensor(index, dtype=torch.int64)
    labels = y[rows]
    if ids is not None:
        labels = torch.tensor([ids.get(name, NO_CLASS) for name in dataset.classes], dtype=torch.int64)[labels]
    return Samples(x, labels, rows, *((data.mean, data.std, data.augment) if data else ()))


def normalisation_of(x: Tensor, mean: Level, std: Level) -> Normalisation | None:
    """Return the normalisation of rows of x (N, ...) that the settings ask for; None without mean and std."""
    if mean is None and std is None:
        return None
    return Normalisation(
        _level("mean", 0.0 if mean is None else mean, x), _level("std", 1.0 if std is None else std, x)
    )


def _affine(normalisation: Normalisation | None, divisor: float) -> tuple[Tensor | None, Tensor]:
    """Return the factor and shift that turn a stored v into (v / divisor - mean) / std; None without either."""
    if normalisation is None:
        return None, torch.zeros(())
    return 1.0 / (divisor * normalisation.std), -normalisation.mean / normalisation.std


def _level(key: str, value: float | Sequence[float], x: Tensor) -> Tensor:
    """Return one number, or one per channel in a shape that broadcasts over a batch of rows of x."""
    level = torch.as_tensor(value, dtype=torch.float32)
    if level.dim() == 0 or len(level) == 1:
        return level.reshape(())
    if len(level) != x.shape[1]:
        raise UserError(
            f"data.{key} has {len(level)} values: use one number, or one for each of {x.shape[1]} channels."
        )
    return level.view(1, -1, *([1] * (x.dim() - 2)))
