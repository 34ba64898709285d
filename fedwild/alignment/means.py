"""Means of aligned models, as they come in one after the other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedwild.alignment.parts import Disentangled


class PartMeans:
    """For every weight and each of its four parts, the mean over the clients for which it plays that part."""

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
        """By part/name; where a weight plays a part for nobody, its mean over all clients."""
        found = {}
        for key, total in self._sums.items():
            weights = self._weights[key]
            own = (total / weights).float()
            found[key] = torch.where(weights > 0, own, common[key.partition("/")[2]])
        return found


def of_parts(means: Mapping[str, Mapping[str, Tensor]], model: Disentangled) -> dict[str, Tensor]:
    """Every weight that has masks, from the means for the parts that these masks say."""
    chosen: dict[str, Tensor] = {}
    for name in model.close:
        chosen[name] = means["rest"][name]
        for part, mask in model.parts(name)._asdict().items():
            chosen[name] = torch.where(mask, means[part][name], chosen[name])
    return chosen


class RunningMean:
    """The plain mean of the models so far."""

    def __init__(self) -> None:
        self._count = 0
        self._sums: dict[str, Tensor] = {}

    def add(self, state: Mapping[str, Tensor]) -> None:
        self._count += 1
        for name, tensor in state.items():
            self._sums[name] = tensor.clone() if name not in self._sums else self._sums[name].add_(tensor)

    def mean(self) -> dict[str, Tensor]:
        return {name: total / self._count for name, total in self._sums.items()}
