"""Federated open space sampling (FOSS): Zhu, Liao, Liu, Yuan: FedOSS. IEEE TMI 2024, section III.C.

Clients tell count, mean and covariance of their features, class by class. The server merges them into exactly what it
would have found over all features (Theorem 1), and everyone draws new features from where these Gaussians are unlikely.

A covariance of n features in D dimensions has a rank below n. While n - 1 rows of D numbers are less than half of a
D x D matrix, it is kept and sent as such rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

FLOOR = 1e-4
"""Added to every variance, so that no direction is without any."""


@dataclass(frozen=True)
class Moments:
    """Count, mean and spread of features, in float64."""

    count: int
    mean: Tensor
    """(D,)"""
    spread: Tensor
    """S = sum (x - mean)(x - mean)': rows A (count - 1, D) with A'A = S if that is `thin`, else S (D, D) itself."""

    @property
    def thin(self) -> bool:
        """Whether `spread` is rows."""
        return thin(self.count, len(self.mean))

    def scatter(self) -> Tensor:
        """Sum (x - mean)(x - mean)' (D, D); the covariance is this over count - 1 (Eq. 4)."""
        return self.spread.T @ self.spread if self.thin else self.spread


def thin(count: int, dims: int) -> bool:
    """Whether count - 1 rows are no more than half of a matrix."""
    return 2 * (count - 1) <= dims


def moments(x: Tensor) -> Moments:
    """Of features x (n, D), n >= 1."""
    x = x.double()
    count, dims = x.shape
    mean = x.mean(0)
    if thin(count, dims):
        return Moments(count, mean, _helmert(x))
    centred = x - mean
    return Moments(count, mean, centred.T @ centred)


def merge(a: Moments, b: Moments) -> Moments:
    """Of the features of both together (Theorem 1, for two)."""
    count = a.count + b.count
    mean = (a.count * a.mean + b.count * b.mean) / count
    between = (a.mean - b.mean) * math.sqrt(a.count * b.count / count)
    if thin(count, len(mean)):
        return Moments(count, mean, torch.cat([a.spread, b.spread, between.unsqueeze(0)]))
    total = torch.addr(a.scatter(), between, between)
    return Moments(count, mean, total.addmm_(b.spread.T, b.spread) if b.thin else total.add_(b.spread))


def by_class(x: Tensor, y: Tensor, least: int = 1) -> dict[int, Moments]:
    """Moments of features x (n, D) for every class of y (n,) that has at least `least` of them."""
    return {int(k): moments(x[y == k]) for k in torch.unique(y) if int((y == k).sum()) >= least}


def merge_classes(parts: Iterable[Mapping[int, Moments]]) -> dict[int, Moments]:
    """The moments of every class over all parts."""
    total: dict[int, Moments] = {}
    for part in parts:
        for k, found in part.items():
            total[k] = merge(total[k], found) if k in total else found
    return dict(sorted(total.items()))


def to_tensors(found: Moments) -> dict[str, Tensor]:
    """As they travel, in float32: thin rows as the triangle of a QR decomposition, a matrix as its upper half.

    Neither tells more than the covariance does.
    """
    rows = len(found.mean)
    spread = _triangle(found.spread) if found.thin else found.spread[tuple(torch.triu_indices(rows, rows))]
    return {"mean": found.mean.float(), "spread": spread.float()}


def from_tensors(count: int, tensors: Mapping[str, Tensor]) -> Moments:
    """What `to_tensors` made."""
    mean, spread = tensors["mean"].double(), tensors["spread"].double()
    dims = len(mean)
    return Moments(count, mean, spread if thin(count, dims) else _symmetric(spread, dims))


def travel_shape(count: int, dims: int) -> tuple[int, ...]:
    """The shape of "spread" in `to_tensors`."""
    return (count - 1, dims) if thin(count, dims) else (dims * (dims + 1) // 2,)


@dataclass(frozen=True)
class Gaussian:
    """N(mean, covariance + floor * I), ready to draw from: x = mean + R z with R R' = the covariance."""

    mean: Tensor
    """(D,)"""
    root: Tensor
    """The Cholesky factor (D, D), or (r, D) orthonormal directions that vary more than the floor."""
    gain: Tensor
    """How much more, (r,); empty with a Cholesky factor."""

    @classmethod
    def of(cls, found: Moments) -> Gaussian:
        """The estimate from at least two features (Eq. 4); `ValueError` if the spread is not one of features."""
        try:
            gaussian = cls._of(found)
        except torch.linalg.LinAlgError as error:
            raise ValueError(str(error)) from None
        if not all(bool(torch.isfinite(tensor).all()) for tensor in gaussian.tensors().values()):
            raise ValueError("the moments are too large for float32")
        return gaussian

    @classmethod
    def _of(cls, found: Moments) -> Gaussian:
        degrees = found.count - 1
        if not found.thin:
            return cls(found.mean.float(), _cholesky(found.spread / degrees).float(), torch.empty(0))
        # The rows' own Gram matrix has the same eigenvalues, and it is small.
        values, vectors = torch.linalg.eigh(found.spread @ found.spread.T)
        kept = values > values[-1] * 1e-12
        values, vectors = values[kept], vectors[:, kept]
        directions = (vectors / values.sqrt()).T @ found.spread
        gain = (values / degrees + FLOOR).sqrt() - math.sqrt(FLOOR)
        return cls(found.mean.float(), directions.float(), gain.float())

    @property
    def dims(self) -> int:
        return len(self.mean)

    @property
    def whole(self) -> bool:
        """Whether `root` is a Cholesky factor; of directions there are always fewer than D."""
        return len(self.root) == self.dims

    def at(self, z: Tensor) -> Tensor:
        """mean + R z for standard-normal z (n, D)."""
        if self.whole:
            return self.mean + z @ self.root.T
        return self.mean + math.sqrt(FLOOR) * z + (z @ self.root.T * self.gain) @ self.root

    def log_density(self, squared: Tensor) -> Tensor:
        """log p(mean + R z) for |z|^2 (n,), Eq. 5: it depends on z by its length alone."""
        return -0.5 * (squared + self.dims * math.log(2 * math.pi)) - self.log_volume()

    def log_volume(self) -> float:
        """log det R, half the log determinant of the covariance."""
        if self.whole:
            return float(self.root.double().diagonal().log().sum())
        rest = (self.dims - len(self.gain)) * 0.5 * math.log(FLOOR)
        return float((self.gain.double() + math.sqrt(FLOOR)).log().sum()) + rest

    def tensors(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "root": self.root, "gain": self.gain}


def unlikely(dims: int, draws: int, keep: int, rng: np.random.Generator) -> Tensor:
    """The `keep` least likely of `draws` standard-normal vectors (keep, dims), the least likely first.

    Likelihood falls with |z|^2, which is chi-squared and independent of the direction: lengths are drawn for all,
    directions for the kept ones only.
    """
    squared = np.sort(rng.chisquare(dims, draws))[::-1][:keep]
    return _with_lengths(squared, dims, rng)


def any_of(dims: int, draws: int, keep: int, rng: np.random.Generator) -> Tensor:
    """`keep`, or all, of `draws` standard-normal vectors (keep, dims), whatever their likelihood."""
    return torch.from_numpy(rng.standard_normal((min(draws, keep), dims), dtype=np.float32))


def unlikelier_than(gaussian: Gaussian, log_density: float, draws: int, keep: int, rng: np.random.Generator) -> Tensor:
    """The first `keep`, or fewer, of `draws` standard-normal vectors with log p(x) < log_density (Eq. 5)."""
    squared = rng.chisquare(gaussian.dims, draws)
    below = gaussian.log_density(torch.from_numpy(squared)).numpy() < log_density
    return _with_lengths(squared[below][:keep], gaussian.dims, rng)


def _with_lengths(squared: np.ndarray, dims: int, rng: np.random.Generator) -> Tensor:
    """Vectors in random directions whose squared lengths are given."""
    z = torch.from_numpy(rng.standard_normal((len(squared), dims), dtype=np.float32))
    lengths = torch.from_numpy(np.sqrt(squared)).float().unsqueeze(1)
    return z * (lengths / z.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny))


def _helmert(x: Tensor) -> Tensor:
    """n - 1 rows A with A'A = sum (x - mean)(x - mean)' for x (n, D): contrasts of each row with those before it."""
    n = len(x)
    index = torch.arange(1, n, dtype=x.dtype).unsqueeze(1)
    # Centred first: differences of large sums would lose digits.
    x = x - x.mean(0)
    return (x.cumsum(0)[:-1] - index * x[1:]) / (index * (index + 1)).sqrt()


def _triangle(rows: Tensor) -> Tensor:
    """Rows of the same shape and with the same A'A that depend on A'A only, up to their signs."""
    if not len(rows):
        return rows
    # Without pivots, columns that never vary (dead neurons) would leave a choice, which would tell of single rows.
    r, order = scipy.linalg.qr(rows.numpy(), mode="r", pivoting=True)
    triangle = torch.empty_like(rows)
    triangle[:, torch.from_numpy(order).long()] = torch.from_numpy(r)
    return triangle


def _cholesky(covariance: Tensor) -> Tensor:
    """Of covariance + floor * I; with a higher floor where that is lost in the rounding of what travelled."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    rounding = float(torch.finfo(torch.float32).eps * covariance.trace().abs())
    for floor in (FLOOR, FLOOR + rounding):
        root, failed = torch.linalg.cholesky_ex(covariance + floor * identity)
        if not int(failed):
            return root
    raise ValueError("the matrix has negative eigenvalues, which no covariance has")


def _symmetric(upper: Tensor, dims: int) -> Tensor:
    """The matrix of an upper half that was read row by row."""
    matrix = torch.zeros(dims, dims, dtype=upper.dtype)
    matrix[tuple(torch.triu_indices(dims, dims))] = upper
    return matrix + matrix.triu(1).T
