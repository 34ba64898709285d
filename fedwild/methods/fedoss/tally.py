"""What a client synthesised in a round: moments of pushed samples per class, and figures for the log."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedwild.methods.fedoss.grids import Grid
from fedwild.methods.fedoss.vectors import displacement
from fedwild.statistics import Moments, merge_by_class, moments_by_class

MAX_ROWS = 4096
"""Features beyond this number are merged into the moments."""


@dataclass
class Tally:
    """Counts of the last local epoch."""

    grid: Grid
    samples: int = 0
    boundary: int = 0
    displacement: float = 0.0
    """Sum over boundary samples."""
    merged: dict[int, Moments] = field(default_factory=dict)
    waiting: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Features (n, D) and labels (n,) that are not merged yet."""

    def add(self, samples: int, start: Tensor, pushed: Tensor, labels: Tensor) -> None:
        """Add a batch of `samples` samples, of which those with activations `start` (n, ...) were pushed."""
        self.samples += samples
        self.boundary += len(labels)
        self.displacement += float(displacement(start, pushed).sum())
        self.waiting.append((self.grid.to_vectors(pushed).cpu(), labels.cpu()))
        if sum(len(y) for _, y in self.waiting) > MAX_ROWS:
            self._merge()

    def moments(self, min_count: int) -> dict[int, Moments]:
        """Return the moments of every class with at least `min_count` pushed samples."""
        self._merge()
        return {k: moments for k, moments in self.merged.items() if moments.count >= min_count}

    def info(self) -> dict[str, float]:
        """Return the share of boundary samples and their mean displacement, for the reply's JSON part."""
        return {
            "boundary": self.boundary / max(1, self.samples),
            "displacement": self.displacement / max(1, self.boundary),
        }

    def _merge(self) -> None:
        if self.waiting:
            x, y = (torch.cat(column) for column in zip(*self.waiting, strict=True))
            self.merged = merge_by_class([self.merged, moments_by_class(x, y)])
            self.waiting.clear()
