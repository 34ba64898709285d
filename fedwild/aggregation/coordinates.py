"""Coordinate-wise median and trimmed mean. Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning:
towards optimal statistical rates. ICML 2018.

Each weight is merged on its own (definitions 1 and 2), so that an attacker must be extreme in every weight to matter in
it, and then does not count. All clients count equally: claims about samples have no influence.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from pydantic import Field
from torch import Tensor

from fedwild.aggregation.base import AGGREGATIONS, Aggregation
from fedwild.aggregation.stack import Stack, Stacked
from fedwild.contract import Tensors


class CoordinateWise(Stacked):
    """Merges every number on its own, over blocks of them."""

    def merge(self, stack: Stack, reference: Tensors | None) -> dict[str, Tensor]:
        merged = np.empty(stack.columns)
        for part, block in stack.blocks():
            merged[part] = self.merge_columns(block)
        return stack.restore(merged)

    @abstractmethod
    def merge_columns(self, values: np.ndarray) -> np.ndarray:
        """Return one number for each column of `values` (clients, columns)."""


@AGGREGATIONS.add("median")
class Median(CoordinateWise):
    """The median of each weight over clients. Tolerates fewer than half of them as attackers."""

    def merge_columns(self, values: np.ndarray) -> np.ndarray:
        return np.median(values, axis=0)


@AGGREGATIONS.add("trimmed-mean")
class TrimmedMean(CoordinateWise):
    """The mean of each weight without its largest and smallest values. Tolerates the share `trim` of attackers."""

    class Params(Aggregation.Params):
        trim: float = Field(0.3, ge=0, lt=0.5, description="share of clients to omit at each end, rounded down")

    params: Params

    def merge_columns(self, values: np.ndarray) -> np.ndarray:
        cut = int(self.params.trim * len(values))
        return np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
