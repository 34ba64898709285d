"""How far a model's confidence is from how often it is right.

Guo, Pleiss, Sun, Weinberger: On calibration of modern neural networks. ICML 2017.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Real = NDArray[np.float64]

BINS = 10


@dataclass(frozen=True)
class Calibration:
    """Answers in bins of equal width by confidence: (bins,) each."""

    counts: NDArray[np.int64]
    confidence: Real
    """The mean of each bin; 0 where it is empty."""
    right: Real
    """The share of right answers in each bin; 0 where it is empty."""

    @property
    def error(self) -> float:
        """The expected calibration error: the mean over answers of their bin's |right - confidence|."""
        weights = self.counts / max(1, int(self.counts.sum()))
        return float((weights * np.abs(self.right - self.confidence)).sum())

    def rows(self) -> Iterator[tuple[float, float, int, float]]:
        """Of each bin that is not empty: where it begins and ends, answers, and the share that is right."""
        bins = len(self.counts)
        for number, (count, right) in enumerate(zip(self.counts.tolist(), self.right.tolist(), strict=True)):
            if count:
                yield number / bins, (number + 1) / bins, count, right


def calibration_of(confidence: Real, right: NDArray[np.bool_], bins: int = BINS) -> Calibration:
    """Confidences (n,) from 0 to 1 and whether each answer is right (n,), put into bins."""
    number = np.clip((confidence * bins).astype(int), 0, bins - 1)
    counts = np.bincount(number, minlength=bins)
    some = np.maximum(counts, 1)
    return Calibration(
        counts,
        np.bincount(number, weights=confidence, minlength=bins) / some,
        np.bincount(number, weights=right, minlength=bins) / some,
    )
