"""From unknown scores to decisions: thresholds set on *known validation* data, never on test unknowns.

The rule is part of a result. (a) `threshold_at_acceptance`: a given share of known validation samples is
accepted. (b) `per_class_thresholds`: the same within each class (OVRN). (c) `decide_by_extra_class`: the
largest of K+1 outputs (PROSER, FedOSS, OpenMax). (d) a fixed number, such as `dias_threshold`. A sample is
accepted if u <= t and answered with UNKNOWN otherwise.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedwild.openset.metrics import UNKNOWN, smallest_threshold_admitting

Array = Tensor | np.ndarray


def threshold_at_acceptance(u_known_validation: Array, accept: float = 0.95) -> float:
    """Rule (a): the smallest t such that at least `accept` of the samples (n,) have u <= t.

    An actual order statistic, exact; samples tied with it are accepted too. No samples: +inf, accept
    everything. A NaN score counts as larger than every other (and `decide` always rejects it).
    """
    if not 0 < accept <= 1:
        raise ValueError(f"accept must be in (0, 1], not {accept}.")
    u = torch.as_tensor(u_known_validation).detach().double().cpu().numpy()
    if u.size == 0:
        return math.inf
    return smallest_threshold_admitting(np.where(np.isnan(u), np.inf, u), accept)


def per_class_thresholds(u: Array, predicted: Array, n_classes: int, accept: float = 0.95) -> Tensor:
    """Rule (b): rule (a) within each class; (K,) float64, for `decide`.

    `u` (n,) are the scores of known validation samples, `predicted` (n,) their classes 0..K-1. A class
    without samples gets the threshold of all samples together.
    """
    scores, classes = torch.as_tensor(u), torch.as_tensor(predicted)
    if scores.shape != classes.shape:
        raise ValueError(
            f"u and predicted must have the same shape, not {tuple(scores.shape)} and {tuple(classes.shape)}."
        )
    if classes.numel() and not (classes.min() >= 0 and classes.max() < n_classes):
        raise ValueError(f"predicted must be ids 0..{n_classes - 1}.")
    everyone = threshold_at_acceptance(scores, accept)
    members = (scores[classes == k] for k in range(n_classes))
    return torch.tensor(
        [threshold_at_acceptance(own, accept) if own.numel() else everyone for own in members],
        dtype=torch.float64,
    )


def dias_threshold(n_classes: int) -> float:
    """Rule (d) of DIAS, for the `msp` score: accept iff max p > 0.5 / K + 0.5 - 0.05.

    The strict inequality is kept: u = -max p is accepted only below -(0.5 / K + 0.45).
    """
    return math.nextafter(-(0.5 / n_classes + 0.5 - 0.05), -math.inf)


def decide(logits: Tensor, unknown: Tensor, threshold: float | Array) -> Tensor:
    """The argmax class of each row of `logits` (n, K), or UNKNOWN (-1) where `unknown` (n,) exceeds t.

    `threshold` is a number or one per class (K,), of which that of the predicted class counts. A NaN score is
    answered with UNKNOWN. Returns ids (n,), int64.
    """
    if logits.ndim != 2 or logits.shape[1] == 0 or unknown.shape != logits.shape[:1]:
        raise ValueError(
            f"logits must be (n, K) and unknown (n,), not {tuple(logits.shape)} and {tuple(unknown.shape)}."
        )
    predicted = logits.argmax(dim=1)
    limits = torch.as_tensor(threshold, dtype=torch.float64, device=unknown.device)
    if limits.ndim == 1 and limits.shape[0] == logits.shape[1]:
        limits = limits[predicted]
    elif limits.ndim > 0:
        raise ValueError(
            f"threshold must be a number or ({logits.shape[1]},), one per class, not {tuple(limits.shape)}."
        )
    return torch.where(unknown.double() <= limits, predicted, UNKNOWN)


def decide_by_extra_class(outputs: Tensor) -> Tensor:
    """Rule (c): argmax over outputs (n, K+1), the last of which means UNKNOWN. Returns ids (n,), int64."""
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise ValueError(f"outputs must have shape (n, K+1) with K >= 1, not {tuple(outputs.shape)}.")
    winner = outputs.argmax(dim=1)
    return torch.where(winner == outputs.shape[1] - 1, UNKNOWN, winner)
