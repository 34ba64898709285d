"""The data of one source: arrays and names, before the test split, conversion and merging of domains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedwild.core.errors import UserError

SPLIT_SEED = 20230
"""The test split of a data set does not depend on the seed of a run."""


@dataclass(frozen=True)
class Part:
    """The training or test samples: x (n, ...) as stored; y, domain (n,) int64; owner (n,) int64 or None."""

    x: Tensor
    y: np.ndarray
    domain: np.ndarray
    owner: np.ndarray | None

    def rows(self, index: np.ndarray) -> Part:
        """Return these rows of the part."""
        owner = None if self.owner is None else self.owner[index]
        return Part(self.x[index], self.y[index], self.domain[index], owner)


@dataclass(frozen=True)
class Raw:
    """One source: its training part, its test part if it has one, and the names of classes, domains and owners."""

    train: Part
    test: Part | None
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    owners: tuple[str, ...] = ()

    def map(self, change: Callable[[Part], Part], **names: tuple[str, ...]) -> Raw:
        """Return the source with both parts changed, first the training part, and with these names."""
        return replace(self, train=change(self.train), test=None if self.test is None else change(self.test), **names)


def with_test(raw: Raw, fraction: float, name: str) -> Raw:
    """Return a source with test data: its own, or a fixed split, stratified by owner (if possible), domain, class."""
    if raw.test is not None:
        return raw
    owner = np.zeros(len(raw.train.y), dtype=np.int64) if raw.train.owner is None else raw.train.owner
    test_rows = stratified_test(fraction, owner, raw.train.domain, raw.train.y)
    if len(test_rows) < fraction * len(owner) / 2:  # owners with few samples per class have no test data
        test_rows = stratified_test(fraction, raw.train.domain, raw.train.y)
    if not len(test_rows):
        raise UserError(
            f"data.test_fraction = {fraction} gives no test data: {name} has too few samples per class; increase it or "
            "provide test data."
        )
    train_rows = np.setdiff1d(np.arange(len(raw.train.y)), test_rows)
    return replace(raw, train=raw.train.rows(train_rows), test=raw.train.rows(test_rows))


def stratified_test(fraction: float, *groups: np.ndarray) -> np.ndarray:
    """Return the sorted rows of a random `fraction` of each group, rounded; at least one row stays for training."""
    rng = np.random.default_rng(SPLIT_SEED)
    _, group = np.unique(np.stack(groups), axis=1, return_inverse=True)
    group = group.reshape(-1)
    chosen = []
    for number in range(int(group.max()) + 1 if len(group) else 0):
        rows = rng.permutation(np.nonzero(group == number)[0])
        chosen.append(rows[: min(len(rows) - 1, int(fraction * len(rows) + 0.5))])
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *chosen]))
