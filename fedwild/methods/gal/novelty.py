"""Which unlabelled samples are novel (GAL, Eq. 5): those whose embedding has a small cosine to every known row."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

BINS = 200
"""Bins of a histogram of cosines, from -1 to 1."""
MIN_TAIL = 0.1
"""The ratio of two tails is too uncertain where a smaller share of the known samples is left."""
Floats = NDArray[np.float64]


def max_cosine(z: Tensor, rows: Tensor) -> Tensor:
    """Return the largest cosine (n,) of embeddings z (n, d) to the known rows (C, d)."""
    return (F.normalize(z) @ F.normalize(rows).T).amax(dim=1)


def is_novel(z: Tensor, rows: Tensor, novelty: float, inherited: range, r: float) -> Tensor:
    """Return whether each embedding (n, d) resembles no row (C, d) of the head (n,).

    No labelled samples calibrate the threshold of `inherited` rows, those of classes that an earlier run discovered:
    samples nearest to one of them are novel if their cosine is below `r` (Eq. 5), too.
    """
    best, nearest = (F.normalize(z) @ F.normalize(rows).T).max(dim=1)
    is_inherited = (nearest >= inherited.start) & (nearest < inherited.stop)
    return (best < novelty) & (~is_inherited | (best < r))


def nearest_prototype(z: Tensor, prototypes: Tensor) -> Tensor:
    """Return the number (n,) of the prototype (C, d) with the largest cosine to each embedding (n, d)."""
    return (F.normalize(z) @ F.normalize(prototypes).T).argmax(dim=1)


def cosine_histogram(cosines: Tensor) -> Tensor:
    """Return the counts (BINS,) of cosines. The server sees nothing else of them."""
    return torch.histc(cosines.float().clamp(-1, 1), BINS, -1, 1)


def bin_edge(bins: int) -> float:
    """Return the cosine at the upper edge of the first `bins` bins."""
    return -1 + 2 * bins / BINS


def novelty_threshold(
    known: Floats, pool: Floats, rule: Literal["separate", "accept", "fixed"], accept: float, fixed: float
) -> float:
    """Return the cosine below which a sample is novel, from histograms of known samples and of the unlabelled pool."""
    if rule == "fixed":
        return fixed
    return accepting_threshold(known, accept) if rule == "accept" else separating_threshold(known, pool, accept)


def accepting_threshold(known: Floats, accept: float) -> float:
    """Return the largest threshold with at most 1 - accept of the known samples below it, by their histogram."""
    if not known.sum():
        return 1.0
    below = np.append(0, np.cumsum(known)) / known.sum()
    return bin_edge(int(np.flatnonzero(below <= 1 - accept + 1e-9)[-1]))


def max_known_share(known: Floats, pool: Floats) -> float:
    """Return an upper bound of the share of known samples in the pool: the smallest ratio of upper tails.

    A pool with a share s of known samples has at least s times their upper tail at every cosine.
    """
    if not known.sum() or not pool.sum():
        return 0.0
    tail = np.append(1, 1 - np.cumsum(known) / known.sum())
    pool_tail = np.append(1, 1 - np.cumsum(pool) / pool.sum())
    sure = tail >= MIN_TAIL
    return float(min(1.0, (pool_tail[sure] / tail[sure]).min()))


def separating_threshold(known: Floats, pool: Floats, accept: float) -> float:
    """Return the threshold that best separates novel from known samples of this pool.

    With a share s of known samples in the pool, F_pool(r) - 2 s F_known(r) is the share of novel minus the share of
    known samples below r. The threshold maximises it, and is never below that of `accepting_threshold`. If the pool has
    no known samples, all of it is novel.
    """
    if not known.sum() or not pool.sum():
        return accepting_threshold(known, accept)
    share = max_known_share(known, pool)
    gain = np.append(0, np.cumsum(pool)) / pool.sum() - 2 * share * np.append(0, np.cumsum(known)) / known.sum()
    best = int(np.flatnonzero(gain >= gain.max() - 1e-12)[-1])
    return max(bin_edge(best), accepting_threshold(known, accept))
