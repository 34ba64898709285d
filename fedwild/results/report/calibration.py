"""How well a model's confidence agrees with its accuracy.

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
    """Answers in bins of equal width by confidence; every array is (bins,)."""

    counts: NDArray[np.int64]
    confidence: Real
    """The mean confidence of each bin; 0 for an empty bin."""
    accuracy: Real
    """The share of correct answers in each bin; 0 for an empty bin."""

    @property
    def error(self) -> float:
        """The expected calibration error: the mean of |accuracy - confidence| of the bins, weighted by their counts."""
        weights = self.counts / max(1, int(self.counts.sum()))
        return float((weights * np.abs(self.accuracy - self.confidence)).sum())

    def rows(self) -> Iterator[tuple[float, float, int, float]]:
        """Yield the bins that are not empty: start, end, number of answers, accuracy."""
        bins = len(self.counts)
        for number, (count, accuracy) in enumerate(zip(self.counts.tolist(), self.accuracy.tolist(), strict=True)):
            if count:
                yield number / bins, (number + 1) / bins, count, accuracy


def calibration_of(confidence: Real, correct: NDArray[np.bool_], bins: int = BINS) -> Calibration:
    """Return the calibration of answers with confidences (n,) from 0 to 1, which are correct or not (n,)."""
    number = np.clip((confidence * bins).astype(int), 0, bins - 1)
    counts = np.bincount(number, minlength=bins)
    divisors = np.maximum(counts, 1)
    return Calibration(
        counts,
        np.bincount(number, weights=confidence, minlength=bins) / divisors,
        np.bincount(number, weights=correct, minlength=bins) / divisors,
    )
