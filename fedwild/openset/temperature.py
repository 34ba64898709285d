"""Temperature scaling over clients: probabilities that are as certain as the predictor is right.

Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", ICML 2017: divide logits by the T that
minimises the negative log-likelihood of validation samples. The decision does not change. Each client sends the sums of
its losses at fixed temperatures, so no logit and no label leaves it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

TEMPERATURES = 2.0 ** np.arange(-3, 5.25, 0.25)
"""From 1/8 to 32, with 1 among them."""
MAX_LOSS = 100.0
"""The largest loss of one sample, so that a single sample cannot decide."""


def loss_sums(logits: Tensor, labels: Tensor) -> np.ndarray:
    """Return sum_i -log softmax(z_i / T)_(y_i) for each temperature, float64; logits (n, K), labels (n,)."""
    if not len(labels):
        return np.zeros(len(TEMPERATURES))
    return np.array([_loss_sum(logits.double() / temperature, labels) for temperature in TEMPERATURES.tolist()])


def _loss_sum(logits: Tensor, labels: Tensor) -> float:
    losses = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    return float(losses.nan_to_num(MAX_LOSS).clamp(0, MAX_LOSS).sum())


def best_temperature(sums: np.ndarray) -> float:
    """Return the temperature with the smallest loss: the vertex of the parabola, in log T, around the best one."""
    if np.ptp(sums) == 0:
        return 1.0
    best = int(np.argmin(sums))
    if best in (0, len(sums) - 1):
        return float(TEMPERATURES[best])
    left, centre, right = sums[best - 1 : best + 2]
    curvature = left - 2 * centre + right
    shift = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
    return float(TEMPERATURES[best] * 2.0 ** (0.25 * shift))
