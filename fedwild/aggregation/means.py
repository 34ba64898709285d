"""Merging replies into one set of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from fedwild.contract import Reply

Weight = Callable[[Reply], float]
"""A client's weight in a mean, from its reply."""


def by_samples(reply: Reply) -> float:
    """Return n_k, the number of training samples behind a reply."""
    return float(reply.samples)


def equally(reply: Reply) -> float:
    """Return 1 for every client with training samples, else 0."""
    return float(reply.samples > 0)


def weighted_mean(replies: Iterable[Reply], group: str, weight: Weight = by_samples) -> dict[str, Tensor] | None:
    """Return sum_k w_k t_k / sum_k w_k for every tensor of a group; None if all weights are 0.

    Sums are computed in float64 in the order of the clients' names, with one reply in memory at a time. Integer tensors
    (batch-norm's counters) are copied from the first reply.
    """
    total = 0.0
    sums = Sums()
    for reply in replies:
        w = weight(reply)
        if w == 0:
            continue
        total += w
        tensors = reply.payload.group(group)
        if sums.names and tensors.keys() != sums.names:
            raise ValueError(f"group {group!r} of {reply.client} has other tensors than the replies before it")
        for name, tensor in tensors.items():
            sums.add(name, tensor, w)
    return None if total == 0 else sums.divide_by(total)


def weighted_sum(replies: Iterable[Reply], group: str, weight: Callable[[Reply, str], float]) -> dict[str, Tensor]:
    """Return sum_k w_k t_k for every tensor of a group, with weights by reply and tensor.

    Tensors whose weights are all 0 are omitted. Otherwise it works like `weighted_mean`.
    """
    sums = Sums()
    for reply in replies:
        for name, tensor in reply.payload.group(group).items():
            w = weight(reply, name)
            if w != 0:
                sums.add(name, tensor, w)
    return sums.divide_by(1.0)


def running_mean(mean: Mapping[str, Tensor], model: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the mean of `count` models from the mean of all but the last one; integers are those of the last."""
    return {
        name: (mean[name].double() + (last.double() - mean[name].double()) / count).to(last.dtype)
        if last.is_floating_point()
        else last
        for name, last in model.items()
    }


class Sums:
    """Running sums of tensors by name, in float64; of integer tensors, the first is kept."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._dtypes: dict[str, torch.dtype] = {}

    @property
    def names(self) -> set[str]:
        return set(self._sums)

    def add(self, name: str, tensor: Tensor, weight: float) -> None:
        if name not in self._sums:
            self._dtypes[name] = tensor.dtype
            self._sums[name] = tensor.to(torch.float64) * weight if tensor.is_floating_point() else tensor.clone()
        elif tensor.is_floating_point():
            self._sums[name].add_(tensor, alpha=weight)

    def divide_by(self, total: float) -> dict[str, Tensor]:
        """Return the sums divided by `total`, in the types of the tensors."""
        types = self._dtypes
        return {
            name: (value / total).to(types[name]) if types[name].is_floating_point else value
            for name, value in self._sums.items()
        }
