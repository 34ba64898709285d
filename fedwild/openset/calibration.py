"""From unknown scores to decisions: thresholds set on *known validation* data, never on test unknowns.

The rule is part of a result. (a) `threshold_at_acceptance`: accept a given share of known validation samples.
(b) `per_class_thresholds`: the same within each class (OVRN). (c) The largest of K + 1 outputs (PROSER, FedOSS): the
threshold 0 of a score that compares them, see `decisions.py`. (d) A fixed number. A sample is accepted if u <= t;
otherwise the answer is UNKNOWN.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedwild.openset.metrics import UNKNOWN, threshold_accepting

Array = Tensor | np.ndarray


def threshold_at_acceptance(u_known_validation: Array, accept: float = 0.95) -> float:
    """Rule (a): return the smallest t such that at least the share `accept` of the samples (n,) has u <= t.

    t is one of the scores; samples with the same score are accepted too. Without samples it is +inf, which accepts
    everything. A NaN score counts as larger than every other, and `decide` always rejects it.
    """
    if not 0 < accept <= 1:
        raise ValueError(f"accept must be in (0, 1], not {accept}.")
    u = torch.as_tensor(u_known_validation).detach().double().cpu().numpy()
    if u.size == 0:
        return math.inf
    return threshold_accepting(np.where(np.isnan(u), np.inf, u), accept)


def per_class_thresholds(u: Array, predicted: Array, n_classes: int, accept: float = 0.95) -> Tensor:
    """Rule (b): return the thresholds of rule (a) within each class, (K,) float64, for `decide`.

    `u` (n,) are the scores of known validation samples, `predicted` (n,) their classes 0..K-1. A class without samples
    gets the threshold of all samples.
    """
    scores, classes = torch.as_tensor(u), torch.as_tensor(predicted)
    if scores.shape != classes.shape:
        raise ValueError(
            f"u and predicted must have the same shape, not {tuple(scores.shape)} and {tuple(classes.shape)}."
        )
    if classes.numel() and not (classes.min() >= 0 and classes.max() < n_classes):
        raise ValueError(f"predicted must be ids 0..{n_classes - 1}.")
    common = threshold_at_acceptance(scores, accept)
    groups = (scores[classes == k] for k in range(n_classes))
    return torch.tensor(
        [threshold_at_acceptance(own, accept) if own.numel() else common for own in groups],
        dtype=torch.float64,
    )


def decide(logits: Tensor, unknown: Tensor, threshold: float | Array) -> Tensor:
    """Return the argmax class of each row of `logits` (n, K), or UNKNOWN (-1) where `unknown` (n,) exceeds t.

    `threshold` is a number, or (K,) for one per class, applied to the predicted class. A NaN score gives UNKNOWN. The
    ids (n,) are int64.
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
