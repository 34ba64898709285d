"""Count, mean and covariance of features, merged exactly over clients.

Theorem 1 and Eq. 4 of Zhu, Liao, Liu, Yuan: FedOSS. IEEE Transactions on Medical Imaging 43(1), 2024.

Clients send the count, mean and covariance of their features per class. The server merges them into the count, mean and
covariance of all features together. The covariance of n features in D dimensions has a rank below n. While n - 1 rows
of D numbers take at most half the space of a D x D matrix, it is stored and sent as such rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import scipy.linalg
import torch
from torch import Tensor


def is_low_rank(count: int, dims: int) -> bool:
    """Return whether count - 1 rows take at most half the space of a matrix."""
    return 2 * (count - 1) <= dims


@dataclass(frozen=True)
class Moments:
    """Count, mean and spread of features, in float64."""

    count: int
    mean: Tensor
    """(D,)"""
    spread: Tensor
    """S = sum (x - mean)(x - mean)': rows A (count - 1, D) with A'A = S if `is_low_rank`, else S (D, D) itself."""

    @property
    def is_low_rank(self) -> bool:
        """Whether `spread` holds rows."""
        return is_low_rank(self.count, len(self.mean))

    def scatter(self) -> Tensor:
        """Return sum (x - mean)(x - mean)' (D, D). Divided by count - 1, it is the covariance (Eq. 4)."""
        return self.spread.T @ self.spread if self.is_low_rank else self.spread

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the tensors to send, in float32.

        Rows are sent as the triangle of a QR decomposition, a matrix as its upper half. Neither reveals more than the
        covariance does.
        """
        dims = len(self.mean)
        spread = _triangle(self.spread) if self.is_low_rank else self.spread[tuple(torch.triu_indices(dims, dims))]
        return {"mean": self.mean.float(), "spread": spread.float()}

    @classmethod
    def from_tensors(cls, count: int, tensors: Mapping[str, Tensor]) -> Moments:
        """Return the moments that `to_tensors` encoded."""
        mean, spread = tensors["mean"].double(), tensors["spread"].double()
        dims = len(mean)
        return cls(count, mean, spread if is_low_rank(count, dims) else _symmetric(spread, dims))


def spread_shape(count: int, dims: int) -> tuple[int, ...]:
    """Return the shape of "spread" in `Moments.to_tensors`."""
    return (count - 1, dims) if is_low_rank(count, dims) else (dims * (dims + 1) // 2,)


def compute_moments(x: Tensor) -> Moments:
    """Return the moments of features x (n, D), n >= 1."""
    x = x.double()
    count, dims = x.shape
    mean = x.mean(0)
    if is_low_rank(count, dims):
        return Moments(count, mean, _helmert(x))
    centred = x - mean
    return Moments(count, mean, centred.T @ centred)


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Return the moments of both sets of features together (Theorem 1 for two clients)."""
    count = a.count + b.count
    mean = (a.count * a.mean + b.count * b.mean) / count
    between = (a.mean - b.mean) * math.sqrt(a.count * b.count / count)
    if is_low_rank(count, len(mean)):
        return Moments(count, mean, torch.cat([a.spread, b.spread, between.unsqueeze(0)]))
    total = torch.addr(a.scatter(), between, between)
    return Moments(count, mean, total.addmm_(b.spread.T, b.spread) if b.is_low_rank else total.add_(b.spread))


def moments_by_class(x: Tensor, y: Tensor) -> dict[int, Moments]:
    """Return the moments of features x (n, D) for every class of y (n,)."""
    return {int(k): compute_moments(x[y == k]) for k in torch.unique(y)}


def merge_by_class(parts: Iterable[Mapping[int, Moments]]) -> dict[int, Moments]:
    """Return the moments of every class over all parts, in the order of classes."""
    total: dict[int, Moments] = {}
    for part in parts:
        for k, moments in part.items():
            total[k] = merge_moments(total[k], moments) if k in total else moments
    return dict(sorted(total.items()))


def _helmert(x: Tensor) -> Tensor:
    """Return n - 1 rows A with A'A = sum (x - mean)(x - mean)' for x (n, D).

    Row i is the scaled difference between the mean of the first i features and the next one.
    """
    n = len(x)
    index = torch.arange(1, n, dtype=x.dtype).unsqueeze(1)
    # Centre first, because differences of large sums lose digits.
    x = x - x.mean(0)
    return (x.cumsum(0)[:-1] - index * x[1:]) / (index * (index + 1)).sqrt()


def _triangle(rows: Tensor) -> Tensor:
    """Return rows of the same shape and with the same A'A that depend on A'A only, up to their signs."""
    if not len(rows):
        return rows
    # Without pivoting, columns that never vary (dead neurons) leave a choice, which would reveal single rows.
    r, order = scipy.linalg.qr(rows.numpy(), mode="r", pivoting=True)
    triangle = torch.empty_like(rows)
    triangle[:, torch.from_numpy(order).long()] = torch.from_numpy(r)
    return triangle


def _symmetric(upper: Tensor, dims: int) -> Tensor:
    """Return the symmetric matrix of an upper half stored row by row."""
    matrix = torch.zeros(dims, dims, dtype=upper.dtype)
    matrix[tuple(torch.triu_indices(dims, dims))] = upper
    return matrix + matrix.triu(1).T
