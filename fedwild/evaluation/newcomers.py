"""Accuracy on the last newcomer's data (T-Acc), on that of all others (S-Acc) and on both (G-Acc).

Two meanings. *Pooled*: a share of all test samples, for a model that all clients share. *Mean over clients*: the mean
of the clients' own accuracies, where each client answers with its own model. Classes of the newcomer that are not in
the registry count as mistakes. Other clients' samples of classes that only the newcomer brought do not count, so that
accuracy before and after its arrival is measured on the same samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedwild.contract import Server
from fedwild.data import Split

Figures = dict[str, float]


def pooled(
    server: Server, split: Split, members: Sequence[str], truth: NDArray[np.int64], right: NDArray[np.bool_]
) -> Figures:
    """Return the shares of test samples answered correctly: truth and right (n,) in the order of `split.test`."""
    arrived = [name for name in split.newcomers if name in server.clients]
    if not arrived:
        return {}
    rows = {client.name: np.isin(split.test, client.test) for client in split.clients}
    target = rows[arrived[-1]]
    here = {*members, arrived[-1]}
    absent = [rows[name] for name in split.newcomers if name not in arrived or name not in here]
    old = [i for i, entry in enumerate(server.classes.entries) if entry.origin != arrived[-1]]
    source = np.isin(truth, old) & ~np.any([target, *absent], axis=0)

    def accuracy(part: NDArray[np.bool_]) -> float:
        return float(right[part].mean()) if part.any() else math.nan

    return _figures(accuracy(target), accuracy(source), accuracy(source | target))


def pooled_over_sites(server: Server, counts: Mapping[str, Mapping[str, Sequence[int]]]) -> Figures:
    """Return the same from the sites' counts: for each site and true class, [correct, all]."""
    arrived = [name for name in server.newcomers if name in counts]
    if not arrived:
        return {}
    old = {entry.name for entry in server.classes.entries if entry.origin != arrived[-1]}
    target, source = np.zeros(2), np.zeros(2)
    for name, classes in counts.items():
        for label, row in classes.items():
            if name == arrived[-1]:
                target += row
            elif label in old:
                source += row

    def accuracy(row: NDArray[np.float64]) -> float:
        return float(row[0] / row[1]) if row[1] else math.nan

    return _figures(accuracy(target), accuracy(source), accuracy(target + source))


def mean_over_clients(server: Server, split: Split, accuracies: Mapping[str, float]) -> Figures:
    """Return the same as means over clients of the accuracy of each client's model on its own test data."""
    arrived = [name for name in split.newcomers if name in server.clients]
    if not arrived or arrived[-1] not in accuracies:
        return {}
    others = [value for name, value in accuracies.items() if name != arrived[-1]]
    source = float(np.mean(others)) if others else math.nan
    return _figures(accuracies[arrived[-1]], source, float(np.mean(list(accuracies.values()))))


def _figures(target: float, source: float, both: float) -> Figures:
    return {"target_accuracy": target, "source_accuracy": source, "global_accuracy": both}
