"""A client's samples drawn anew with another client's mix of classes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fedwild.data.samples import Samples
from fedwild.rng import Rng


def resampled(samples: Samples, mix: Mapping[int, int], most: int, rng: Rng) -> Samples:
    """As many samples of each class id as `mix` has, at most `most` in all, as far as the client has the class.

    A class of which the client has fewer is drawn with repetition. A client that has none of these classes keeps what
    it has.
    """
    draws = rng.numpy("resampling")
    total = sum(mix.values())
    scale = min(1.0, most / total) if total else 0.0
    chosen = []
    for label, count in sorted(mix.items()):
        rows = torch.nonzero(samples.y == label).flatten().numpy()
        wanted = max(1, round(scale * count))
        if len(rows):
            chosen.append(draws.choice(rows, size=wanted, replace=wanted > len(rows)))
    if not chosen:
        return samples.take(draws.permutation(len(samples))[:most]) if len(samples) > most else samples
    return samples.take(np.concatenate(chosen))
