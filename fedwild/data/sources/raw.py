"""What a source hands over: arrays and names, before test split, conversion and merging of domains."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedwild.core.errors import UserError

SPLIT_SEED = 20230  # a data set's own test split never depends on a run's seed


@dataclass(frozen=True)
class Part:
    """Samples of one part. x stored (n, ...); y, domain (n,) int64; owner (n,) int64 or None."""

    x: Tensor
    y: np.ndarray
    domain: np.ndarray
    owner: np.ndarray | None

    def rows(self, index: np.ndarray) -> Part:
        """The part reduced to these rows."""
        owner = None if self.owner is None else self.owner[index]
        return Part(self.x[index], self.y[index], self.domain[index], owner)


@dataclass(frozen=True)
class Raw:
    """One source: its training part, its test part if it has one, and what the numbers in them mean."""

    train: Part
    test: Part | None
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    owners: tuple[str, ...] = ()


def with_test(raw: Raw, fraction: float, name: str) -> Raw:
    """Give a source without test data a fixed test split, stratified by owner (if it can be), domain and class."""
    if raw.test is not None:
        return raw
    owner = np.zeros(len(raw.train.y), dtype=np.int64) if raw.train.owner is None else raw.train.owner
    test_rows = stratified_test(fraction, owner, raw.train.domain, raw.train.y)
    if len(test_rows) < fraction * len(owner) / 2:  # owners with a few samples per class would have no test data
        test_rows = stratified_test(fraction, raw.train.domain, raw.train.y)
    if not len(test_rows):
        raise UserError(
            f"{name} has too few samples per class to set test data apart with "
            f"data.test_fraction={fraction}: raise it or give test data."
        )
    train_rows = np.setdiff1d(np.arange(len(raw.train.y)), test_rows)
    return replace(raw, train=raw.train.rows(train_rows), test=raw.train.rows(test_rows))


def stratified_test(fraction: float, *groups: np.ndarray) -> np.ndarray:
    """Sorted rows of a random `fraction` of each group (rounded, but at least one row stays for training)."""
    rng = np.random.default_rng(SPLIT_SEED)
    _, group = np.unique(np.stack(groups), axis=1, return_inverse=True)
    group = group.reshape(-1)
    chosen = []
    for number in range(int(group.max()) + 1 if len(group) else 0):
        rows = rng.permutation(np.nonzero(group == number)[0])
        chosen.append(rows[: min(len(rows) - 1, int(fraction * len(rows) + 0.5))])
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *chosen]))
