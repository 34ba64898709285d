"""Which unlabelled samples are novel (GAL, Eq. 5): those that point along no known class's row of the head."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

BINS = 200
"""Bins of a histogram of cosines, which lie between -1 and 1."""
Floats = NDArray[np.float64]
SMALLEST_TAIL = 0.1


def likeness(z: Tensor, rows: Tensor) -> Tensor:
    """The largest cosine (n,) of embeddings z (n, d) to the known rows (C, d)."""
    return (F.normalize(z) @ F.normalize(rows).T).amax(dim=1)


def nearest(z: Tensor, prototypes: Tensor) -> Tensor:
    """The number (n,) of the prototype (C, d) with the largest cosine to each embedding (n, d)."""
    return (F.normalize(z) @ F.normalize(prototypes).T).argmax(dim=1)


def histogram(cosines: Tensor) -> Tensor:
    """Counts (BINS,) of cosines; all that the server learns of them."""
    return torch.histc(cosines.float().clamp(-1, 1), BINS, -1, 1)


def upper_edge(bins: int) -> float:
    """The cosine below which the first so many bins lie."""
    return -1 + 2 * bins / BINS


def accepting(known: Floats, accept: float) -> float:
    """The largest threshold below which at most 1 - accept of the known samples lie, by their histogram."""
    if not known.sum():
        return 1.0
    below = np.append(0, np.cumsum(known)) / known.sum()
    return upper_edge(int(np.flatnonzero(below <= 1 - accept + 1e-9)[-1]))


def known_share(known: Floats, pool: Floats) -> float:
    """At most so large a share of the pool is known: the least ratio of the two histograms' upper tails.

    Where known samples are commonest, a pool without any has few; tails of less than a tenth of them are too uncertain.
    """
    if not known.sum() or not pool.sum():
        return 0.0
    tail = np.append(1, 1 - np.cumsum(known) / known.sum())
    pool_tail = np.append(1, 1 - np.cumsum(pool) / pool.sum())
    sure = tail >= SMALLEST_TAIL
    return float(min(1.0, (pool_tail[sure] / tail[sure]).min()))


def separating(known: Floats, pool: Floats, accept: float) -> float:
    """The threshold that keeps most novel samples and fewest known ones of this pool, but no fewer than `accepting`.

    With a share s of known samples in the pool, F_pool(r) - 2 s F_known(r) of it are novel ones below r less known
    ones below r. A pool without known samples is kept whole.
    """
    if not known.sum() or not pool.sum():
        return accepting(known, accept)
    share = known_share(known, pool)
    kept = np.append(0, np.cumsum(pool)) / pool.sum() - 2 * share * np.append(0, np.cumsum(known)) / known.sum()
    best = int(np.flatnonzero(kept >= kept.max() - 1e-12)[-1])
    return max(upper_edge(best), accepting(known, accept))
