"""Means of aligned models, updated one model at a time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedwild.methods.fedpd.parts import Disentangled


class PartMeans:
    """For every weight and each of its four parts, the mean over the clients for which it belongs to that part."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._weights: dict[str, Tensor] = {}

    def add(self, model: Disentangled, weight: float) -> None:
        for name in model.close:
            for part, mask in model.parts(name)._asdict().items():
                key = f"{part}/{name}"
                if key not in self._sums:
                    self._sums[key] = torch.zeros(mask.shape, dtype=torch.float64)
                    self._weights[key] = torch.zeros(mask.shape)
                self._sums[key].add_(model.state[name] * mask, alpha=weight)
                self._weights[key].add_(mask, alpha=weight)

    def means(self, common: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the means by part/name. Where no client has a weight in a part, `common` has its mean over all."""
        found = {}
        for key, total in self._sums.items():
            weights = self._weights[key]
            own = (total / weights).float()
            found[key] = torch.where(weights > 0, own, common[key.partition("/")[2]])
        return found


def select_means(means: Mapping[str, Mapping[str, Tensor]], model: Disentangled) -> dict[str, Tensor]:
    """Return, for every weight with masks, the mean of the part that each of its elements belongs to in `model`."""
    chosen: dict[str, Tensor] = {}
    for name in model.close:
        chosen[name] = means["rest"][name]
        for part, mask in model.parts(name)._asdict().items():
            chosen[name] = torch.where(mask, means[part][name], chosen[name])
    return chosen


class RunningMean:
    """The plain mean of the models added so far."""

    def __init__(self) -> None:
        self._count = 0
        self._sums: dict[str, Tensor] = {}

    def add(self, state: Mapping[str, Tensor]) -> None:
        self._count += 1
        for name, tensor in state.items():
            self._sums[name] = tensor.clone() if name not in self._sums else self._sums[name].add_(tensor)

    def mean(self) -> dict[str, Tensor]:
        return {name: total / self._count for name, total in self._sums.items()}
