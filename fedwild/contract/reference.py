"""What the answers of a predictor are compared with: its scores on known validation samples, and a temperature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwild.core.payload import Payload

GROUP, QUANTILES = "references", "quantiles"


@dataclass(frozen=True)
class Reference:
    """Unknown scores of `count` known validation samples as sorted quantiles (m,) float64, and a temperature T.

    softmax(logits / T) are the calibrated probabilities.
    """

    quantiles: Tensor
    count: int
    temperature: float = 1.0

    def threshold(self, accept: float) -> float:
        """Return the smallest score t such that at least the share `accept` of the samples has u <= t."""
        if not len(self.quantiles):
            return float("inf")
        levels = np.arange(1, len(self.quantiles) + 1) / len(self.quantiles)
        return float(self.quantiles[np.searchsorted(levels, accept)])

    def percentiles(self, unknown: Tensor) -> Tensor:
        """Return the share (n,) of the samples whose score is below each of the scores (n,); NaN without samples."""
        if not len(self.quantiles):
            return torch.full(unknown.shape, float("nan"), dtype=torch.float64)
        below = torch.searchsorted(self.quantiles, unknown.double().contiguous())
        return below.double() / len(self.quantiles)


def pack(references: Mapping[str, Reference]) -> tuple[Tensor, list[dict[str, Any]]]:
    """Return all quantiles as one tensor, and the other fields as plain values in the same order."""
    entries = [
        {"name": name, "quantiles": len(found.quantiles), "count": found.count, "temperature": found.temperature}
        for name, found in sorted(references.items())
    ]
    parts = [found.quantiles for _, found in sorted(references.items())]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64), entries


def unpack(payload: Payload) -> dict[str, Reference]:
    """Return the references of a payload; empty if it has none."""
    entries = payload.info.get(GROUP, [])
    quantiles = payload.group(GROUP).get(QUANTILES, torch.empty(0, dtype=torch.float64))
    if quantiles.dtype != torch.float64 or quantiles.shape != (sum(entry["quantiles"] for entry in entries),):
        raise ValueError("the quantiles of the references do not fit their numbers")
    parts = torch.split(quantiles, [entry["quantiles"] for entry in entries]) if entries else ()
    return {
        entry["name"]: Reference(part, entry["count"], entry["temperature"])
        for entry, part in zip(entries, parts, strict=True)
    }
