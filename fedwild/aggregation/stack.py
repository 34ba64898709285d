"""The replies of a round as the rows of a matrix on disk, for rules that need all of them more than once.

Memory does not depend on the number of clients: the matrix is read in blocks of columns. The file needs as many bytes
as the floating-point tensors of all replies, in the folder for temporary files, and has no name.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import IO

import numpy as np
import torch
from torch import Tensor

from fedwild.aggregation.base import Aggregation
from fedwild.aggregation.means import Weight, by_samples
from fedwild.contract import Reply, Tensors
from fedwild.models.norms import VARIANCE

BLOCK_BYTES = 32_000_000
"""The size of a block of columns in memory, in float64."""


class Stacked(Aggregation):
    """A rule that needs all replies at once."""

    def mean(
        self, replies: Iterable[Reply], group: str, weight: Weight = by_samples, reference: Tensors | None = None
    ) -> dict[str, Tensor] | None:
        with Stack(replies, group, weight) as stack:
            return self.merge(stack, reference or None) if len(stack) else None

    @abstractmethod
    def merge(self, stack: Stack, reference: Tensors | None) -> dict[str, Tensor]:
        """Return one tensor for every tensor of the stacked group; for `reference` see `mean`."""


class Stack:
    """The floating-point tensors of a group, one row of `columns` numbers for each reply with a weight above 0."""

    def __init__(self, replies: Iterable[Reply], group: str, weight: Weight) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by __exit__)
        self.weights: list[float] = []
        self.columns = 0
        self._first: dict[str, Tensor] = {}
        self._floats: dict[str, Tensor] = {}
        for reply in replies:
            w = weight(reply)
            if w != 0:
                self._append(reply.payload.group(group), reply.client)
                self.weights.append(w)

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self.weights)

    def _append(self, tensors: Mapping[str, Tensor], client: str) -> None:
        if not self._first:
            # Copies of integers; of the other tensors, only the shape and the type.
            self._first = {
                name: torch.empty_like(tensor, device="meta") if tensor.is_floating_point() else tensor.clone()
                for name, tensor in tensors.items()
            }
            self._floats = {name: tensor for name, tensor in self._first.items() if tensor.is_floating_point()}
            wide = any(tensor.dtype == torch.float64 for tensor in self._floats.values())
            self._kind = np.float64 if wide else np.float32
            self.columns = sum(tensor.numel() for tensor in self._floats.values())
        if tensors.keys() != self._first.keys():
            raise ValueError(f"the reply of {client} has other tensors than the replies before it")
        for name in self._floats:
            self._file.write(tensors[name].contiguous().numpy().astype(self._kind, copy=False).tobytes())

    def blocks(self, reference: Tensors | None = None) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of columns: their range, and the values (rows, columns) in float64.

        With a `reference`, its tensors are the last row.
        """
        rows, width = len(self), max(1, BLOCK_BYTES // (8 * (len(self) + 1)))
        self._file.flush()
        matrix = np.memmap(self._file, self._kind, "r", shape=(rows, self.columns)) if self.columns else None
        extra = None
        if reference is not None:
            extra = np.concatenate([np.empty(0), *(reference[n].double().flatten().numpy() for n in self._floats)])
        for start in range(0, self.columns, width):
            part = slice(start, min(start + width, self.columns))
            assert matrix is not None
            block = matrix[:, part].astype(np.float64)
            yield part, block if extra is None else np.vstack([block, extra[part]])

    def combine(self, shares: np.ndarray, reference: Tensors | None = None) -> dict[str, Tensor]:
        """Return sum_k shares_k x_k for every tensor. With a `reference`, the last share is that of it."""
        result = np.empty(self.columns)
        for part, block in self.blocks(reference):
            # Rows without a share do not count, not even by their rounding.
            result[part] = shares[shares != 0] @ block[shares != 0]
        return self.restore(result)

    def squared_distances(self, reference: Tensors | None = None) -> np.ndarray:
        """Return ||x_i - x_j||^2 of all rows (rows, rows), on the scale of weights: variances by their square roots."""
        count = len(self) + (reference is not None)
        products, sizes = np.zeros((count, count)), [tensor.numel() for tensor in self._floats.values()]
        variances = np.repeat([name.endswith(VARIANCE) for name in self._floats], sizes).astype(bool)
        for part, block in self.blocks(reference):
            block = np.where(variances[part], np.sqrt(np.abs(block)), block)
            # Distances are differences of products, so products should be small.
            block -= np.median(block, axis=0)
            products += block @ block.T
        squares = np.diag(products)
        return np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0.0)

    def restore(self, values: np.ndarray) -> dict[str, Tensor]:
        """Return a row of numbers (columns,) as tensors; integers are those of the first reply."""
        tensors, start = dict(self._first), 0
        for name, like in self._floats.items():
            part = torch.from_numpy(values[start : start + like.numel()].copy()).reshape(like.shape)
            tensors[name], start = part.to(like.dtype), start + like.numel()
        return tensors
