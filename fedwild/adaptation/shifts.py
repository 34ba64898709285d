"""How far a client's samples lie from what the federation knows, class by class, in the federation's own embedding.

A client sends, for each of its classes c with enough samples, how many there are (n_c), their mean embedding m_c and
v_c, the sum over features of their variance. With V_k the pooled variance of class k within source clients,

    s(c; n, k) = (|m_c - m_nk|^2 - v_c / (n_c - 1) - v_nk / (n_nk - 1)) / V_k

is the squared distance from class k at source client n, in units of that variance, without what sampling alone would
give. Comparing class with class corrects for label skew, and the nearest source client counts, so that a federation of
several domains has room for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwild.data.samples import Samples
from fedwild.errors import BadReply
from fedwild.models import Network

MEASURED_AT_ONCE = 256
HELD_OUT = 20
"""With fewer held-out samples a client's own shift is mostly chance."""
FEWEST = 2
"""A mean of fewer samples has no variance, so that nobody could say how far it would be off by chance."""


@dataclass(frozen=True)
class Statistics:
    """Of every class: samples (K,), mean embedding (K, d) and the sum over features of the variance (K,)."""

    count: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def tensors(self) -> dict[str, Tensor]:
        """For a payload."""
        return {
            "count": torch.as_tensor(self.count),
            "mean": torch.as_tensor(self.mean).float(),
            "variance": torch.as_tensor(self.variance).float(),
        }

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Statistics:
        """From a payload's group."""
        return cls(*(tensors[name].numpy().astype(kind) for name, kind in _TYPES.items()))


_TYPES = {"count": np.int64, "mean": np.float64, "variance": np.float64}


@torch.inference_mode()
def class_statistics(model: Network, samples: Samples, classes: int, at_least: int) -> Statistics:
    """A client's statistics under a model in evaluation mode. Classes with fewer than `at_least` samples have none."""
    model.eval()
    device = next(model.parameters()).device
    count = torch.bincount(samples.y, minlength=classes)
    sums = torch.zeros((classes, model.embedding_dim), dtype=torch.float64)
    squares = torch.zeros(classes, dtype=torch.float64)
    for x, y in samples.batches(MEASURED_AT_ONCE):
        z = model.embed(x.to(device)).cpu().double()
        sums.index_add_(0, y, z)
        squares.index_add_(0, y, z.square().sum(1))
    count[count < at_least] = 0
    enough = count > 0
    mean = torch.where(enough[:, None], sums / count.clamp_min(1)[:, None], 0.0)
    variance = torch.where(enough, squares / count.clamp_min(1) - mean.square().sum(1), 0.0).clamp_min(0)
    return Statistics(count.numpy(), mean.numpy(), variance.numpy())


def check_statistics(tensors: Mapping[str, Tensor], classes: int, width: int, samples: int) -> None:
    """Refuse statistics of another shape, and counts and variances that cannot be."""
    shapes = {"count": (classes,), "mean": (classes, width), "variance": (classes,)}
    for name, shape in shapes.items():
        kind = torch.int64 if name == "count" else torch.float32
        if name not in tensors or tensors[name].shape != shape or tensors[name].dtype != kind:
            raise BadReply(f"class statistics {name!r} are not {kind} of shape {shape}")
    if bool((tensors["count"] < 0).any()) or int(tensors["count"].sum()) > samples:
        raise BadReply(f"class counts do not fit {samples} samples")
    if bool((tensors["variance"] < 0).any()):
        raise BadReply("a variance is below 0")


def pooled_variance(sources: Iterable[Statistics], classes: int) -> np.ndarray:
    """V (K,): the variance of each of K classes within source clients; NaN for a class that none has twice."""
    squares, freedom = np.zeros(classes), np.zeros(classes)
    for source in sources:
        squares += source.count * source.variance
        freedom += np.maximum(0, source.count - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(freedom > 0, squares / freedom, np.nan)


def shifts(client: Statistics, source: Statistics, variance: np.ndarray) -> np.ndarray:
    """s(c; n, k) of every class c of a client and every class k of one source client n: (C, K); NaN where unknown."""
    distance = ((client.mean[:, None] - source.mean[None]) ** 2).sum(2)
    with np.errstate(invalid="ignore", divide="ignore"):
        noise = _noise(client)[:, None] + _noise(source)[None]
        return (distance - noise) / np.where(variance > 0, variance, np.nan)[None]


def nearest_shifts(client: Statistics, sources: Iterable[Statistics], variance: np.ndarray) -> np.ndarray:
    """min_n s(c; n, k) (C, K): how far each of a client's classes is from each class at the nearest source client."""
    nearest = np.full((len(client.count), len(variance)), np.nan)
    for source in sources:
        nearest = np.fmin(nearest, shifts(client, source, variance))
    return nearest


def shift(client: Statistics, nearest: np.ndarray, same: Mapping[int, int]) -> float:
    """S = sum_c n_c s(c) / sum_c n_c over the client's classes c that are the federation's class `same[c]`.

    NaN if there is none that both have enough samples of.
    """
    pairs = [(client.count[c], nearest[c, k]) for c, k in same.items() if np.isfinite(nearest[c, k])]
    total = sum(count for count, _ in pairs)
    return float(sum(count * value for count, value in pairs) / total) if total else float("nan")


def own_shift(train: Statistics, held_out: Statistics) -> float | None:
    """S of a client's own held-out samples against those that it trains on; None if it has too few to tell."""
    if held_out.count.sum() < HELD_OUT:
        return None
    variance = pooled_variance([train], len(train.count))
    classes = {c: c for c in range(len(train.count))}
    value = shift(held_out, shifts(held_out, train, variance), classes)
    return None if np.isnan(value) else value


def between_clients(sources: Iterable[Statistics], variance: np.ndarray) -> list[float]:
    """S of every source client against all the others; clients without a class in common with others are left out."""
    held = list(sources)
    same = {c: c for c in range(len(variance))}
    found = []
    for place, own in enumerate(held):
        others = held[:place] + held[place + 1 :]
        found.append(shift(own, nearest_shifts(own, others, variance), same))
    return [value for value in found if not np.isnan(value)]


def mean_embeddings(sources: Iterable[Statistics], classes: int, width: int) -> Tensor:
    """Every class's mean embedding over source clients (K', width), of the classes that any of them has."""
    count, total = np.zeros(classes), np.zeros((classes, width))
    for source in sources:
        count += source.count
        total += source.count[:, None] * source.mean
    there = count > 0
    return torch.as_tensor(total[there] / count[there, None]).float()


def same_classes(labels: Sequence[str], known: Sequence[str]) -> dict[int, int]:
    """Places of the client's classes that the federation knows, and their places there."""
    return {c: known.index(name) for c, name in enumerate(labels) if name in known}


def most_alike(
    client: Statistics, nearest: np.ndarray, labels: Sequence[str], known: Sequence[str], at_least: int
) -> dict[str, tuple[str, float]]:
    """For each class that the federation does not know, of at least so many samples, the known one that is nearest."""
    return {
        name: (known[int(np.nanargmin(nearest[c]))], float(np.nanmin(nearest[c])))
        for c, name in enumerate(labels)
        if name not in known and client.count[c] >= at_least and np.isfinite(nearest[c]).any()
    }


def _noise(client: Statistics) -> np.ndarray:
    """v_c / (n_c - 1), what sampling adds to the distance of a mean; NaN where a class has not two samples."""
    return np.where(client.count > 1, client.variance / np.maximum(1, client.count - 1), np.nan)
