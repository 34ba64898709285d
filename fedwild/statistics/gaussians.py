"""Gaussians estimated from moments, and draws from where they are unlikely.

Eq. 4 and 5 of Zhu, Liao, Liu, Yuan: FedOSS. IEEE Transactions on Medical Imaging 43(1), 2024.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwild.statistics.moments import Moments

FLOOR = 1e-4
"""Added to every variance, so that the covariance is never singular."""


@dataclass(frozen=True)
class Gaussian:
    """N(mean, covariance + FLOOR * I) in the form x = mean + R z, where R R' is that covariance."""

    mean: Tensor
    """(D,)"""
    root: Tensor
    """The Cholesky factor (D, D), or r < D orthonormal directions (r, D) whose variance exceeds the floor."""
    gain: Tensor
    """Standard deviation minus that of the floor, per direction (r,); empty with a Cholesky factor."""

    @classmethod
    def of(cls, moments: Moments) -> Gaussian:
        """Return the estimate from at least two features (Eq. 4).

        Raises `ValueError` if `moments.spread` is not the spread of any features.
        """
        degrees, spread = moments.count - 1, moments.spread
        if moments.is_low_rank:
            try:
                # The Gram matrix of the rows has the same eigenvalues as the covariance, and it is small.
                values, vectors = torch.linalg.eigh(spread @ spread.T)
            except torch.linalg.LinAlgError as error:
                raise ValueError(str(error)) from None
            kept = values > values[-1] * 1e-12
            values, vectors = values[kept], vectors[:, kept]
            root, gain = (vectors / values.sqrt()).T @ spread, (values / degrees + FLOOR).sqrt() - math.sqrt(FLOOR)
        else:
            root, gain = _cholesky(spread / degrees), torch.empty(0)
        gaussian = cls(moments.mean.float(), root.float(), gain.float())
        if not all(bool(torch.isfinite(tensor).all()) for tensor in gaussian.tensors().values()):
            raise ValueError("the moments are too large for float32")
        return gaussian

    @property
    def dims(self) -> int:
        """D."""
        return len(self.mean)

    @property
    def has_cholesky(self) -> bool:
        """Whether `root` is a Cholesky factor. There are always fewer than D directions."""
        return len(self.root) == self.dims

    def transform(self, z: Tensor) -> Tensor:
        """Return mean + R z (n, D) for standard-normal z (n, D)."""
        if self.has_cholesky:
            return self.mean + z @ self.root.T
        return self.mean + math.sqrt(FLOOR) * z + (z @ self.root.T * self.gain) @ self.root

    def log_density(self, squared: Tensor) -> Tensor:
        """Return log p(mean + R z) (n,) for |z|^2 (n,) (Eq. 5). The density depends on the length of z alone."""
        return -0.5 * (squared + self.dims * math.log(2 * math.pi)) - self.log_volume()

    def log_volume(self) -> float:
        """Return log det R, half the log determinant of the covariance."""
        if self.has_cholesky:
            return float(self.root.double().diagonal().log().sum())
        rest = (self.dims - len(self.gain)) * 0.5 * math.log(FLOOR)
        return float((self.gain.double() + math.sqrt(FLOOR)).log().sum()) + rest

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields by name."""
        return {"mean": self.mean, "root": self.root, "gain": self.gain}


def draw_least_likely(dims: int, draws: int, keep: int, rng: np.random.Generator) -> Tensor:
    """Return the `keep` least likely of `draws` standard-normal vectors (keep, dims), the least likely first.

    The density falls with |z|^2, which is chi-squared and independent of the direction. So lengths are drawn for all
    vectors, and directions only for those that are kept.
    """
    squared = np.sort(rng.chisquare(dims, draws))[::-1][:keep]
    return _with_lengths(squared, dims, rng)


def draw_any(dims: int, draws: int, keep: int, rng: np.random.Generator) -> Tensor:
    """Return min(draws, keep) standard-normal vectors (n, dims) without selection."""
    return torch.from_numpy(rng.standard_normal((min(draws, keep), dims), dtype=np.float32))


def draw_below_density(
    gaussian: Gaussian, log_density: float, draws: int, keep: int, rng: np.random.Generator
) -> Tensor:
    """Return the first `keep`, or fewer, of `draws` standard-normal vectors with log p(x) < log_density (Eq. 5)."""
    squared = rng.chisquare(gaussian.dims, draws)
    below = gaussian.log_density(torch.from_numpy(squared)).numpy() < log_density
    return _with_lengths(squared[below][:keep], gaussian.dims, rng)


def _with_lengths(squared: np.ndarray, dims: int, rng: np.random.Generator) -> Tensor:
    """Return vectors in random directions with the given squared lengths."""
    z = torch.from_numpy(rng.standard_normal((len(squared), dims), dtype=np.float32))
    lengths = torch.from_numpy(np.sqrt(squared)).float().unsqueeze(1)
    return z * (lengths / z.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny))


def _cholesky(covariance: Tensor) -> Tensor:
    """Return the factor of covariance + floor * I, with a higher floor if float32 rounding made it indefinite."""
    identity = torch.eye(len(covariance), dtype=covariance.dtype)
    rounding = float(torch.finfo(torch.float32).eps * covariance.trace().abs())
    for floor in (FLOOR, FLOOR + rounding):
        root, failed = torch.linalg.cholesky_ex(covariance + floor * identity)
        if not int(failed):
            return root
    raise ValueError("the matrix has negative eigenvalues, so it is not a covariance")
