"""Merging replies into one set of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from fedwild.protocol import Reply


def by_samples(reply: Reply) -> float:
    """n_k: the number of training samples behind a reply."""
    return float(reply.samples)


def equally(reply: Reply) -> float:
    """1 for every client that has training samples."""
    return float(reply.samples > 0)


def weighted_mean(
    replies: Iterable[Reply], group: str, weight: Callable[[Reply], float] = by_samples
) -> dict[str, Tensor] | None:
    """sum_k w_k t_k / sum_k w_k for every tensor of a group; None if nobody weighs anything.

    Sums run in float64 in the order of the clients' names, one reply in memory at a time. Integer tensors
    (batch-norm's counters) are copied from the first reply.
    """
    total = 0.0
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for reply in replies:
        w = weight(reply)
        if w == 0:
            continue
        total += w
        tensors = reply.payload.group(group)
        if sums and tensors.keys() != sums.keys():
            raise ValueError(f"the group {group!r} of {reply.client} has other tensors than those before it")
        for name, tensor in tensors.items():
            if name not in sums:
                dtypes[name] = tensor.dtype
                sums[name] = tensor.to(torch.float64) * w if tensor.is_floating_point() else tensor.clone()
            elif tensor.is_floating_point():
                sums[name].add_(tensor, alpha=w)
    if total == 0:
        return None
    return {
        name: (value / total).to(dtypes[name]) if dtypes[name].is_floating_point else value
        for name, value in sums.items()
    }
