"""How far a client's samples are from those of the source clients, class by class, in the federation's embedding.

For each of its classes c with enough samples, a client sends their number n_c, their mean embedding m_c, and v_c, the
sum over features of their variance. With V_k, the pooled variance of class k within source clients,

    s(c; n, k) = (|m_c - m_nk|^2 - v_c / (n_c - 1) - v_nk / (n_nk - 1)) / V_k

is the squared distance from class k at source client n in units of that variance, minus the expected effect of
sampling. Comparing class with class corrects for label skew. Only the nearest source client counts, so that a
federation of several domains accepts each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwild.contract import Tensors
from fedwild.core.errors import BadReply
from fedwild.core.payload import check_like
from fedwild.data.samples import Samples
from fedwild.models import Network
from fedwild.models.inference import INFERENCE_BATCH

MIN_HELD_OUT = 20
"""With fewer held-out samples, a client's own shift is mostly chance."""
MIN_SAMPLES = 2
"""The mean of fewer samples has no variance, so that its sampling error is unknown."""


@dataclass(frozen=True)
class Statistics:
    """For every class: number of samples (K,), mean embedding (K, d), and sum over features of the variance (K,)."""

    count: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the group of a payload."""
        mean, variance = (torch.as_tensor(array).float() for array in (self.mean, self.variance))
        return {"count": torch.as_tensor(self.count), "mean": mean, "variance": variance}

    @classmethod
    def from_tensors(cls, tensors: Tensors) -> Statistics:
        """Return a copy of the statistics in a payload's group."""
        mean, variance = (tensors[name].double().numpy() for name in ("mean", "variance"))
        return cls(tensors["count"].numpy().copy(), mean, variance)


@torch.inference_mode()
def class_statistics(model: Network, samples: Samples, classes: int, at_least: int) -> Statistics:
    """Return a client's statistics under a model in evaluation mode. Classes with fewer samples get zeros."""
    model.eval()
    device = next(model.parameters()).device
    count = torch.bincount(samples.y, minlength=classes)
    sums = torch.zeros((classes, model.embedding_dim), dtype=torch.float64)
    squares = torch.zeros(classes, dtype=torch.float64)
    for x, y in samples.batches(INFERENCE_BATCH):
        z = model.embed(x.to(device)).cpu().double()
        sums.index_add_(0, y, z)
        squares.index_add_(0, y, z.square().sum(1))
    count[count < at_least] = 0
    enough = count > 0
    mean = torch.where(enough[:, None], sums / count.clamp_min(1)[:, None], 0.0)
    variance = torch.where(enough, squares / count.clamp_min(1) - mean.square().sum(1), 0.0).clamp_min(0)
    return Statistics(count.numpy(), mean.numpy(), variance.numpy())


def check_statistics(tensors: Tensors, classes: int, width: int, samples: int) -> None:
    """Reject statistics with other shapes or types, and counts and variances that are impossible."""
    count, mean, variance = torch.empty(classes, dtype=torch.int64), torch.empty(classes, width), torch.empty(classes)
    check_like(tensors, {"count": count, "mean": mean, "variance": variance}, "class statistics")
    if bool((tensors["count"] < 0).any()) or int(tensors["count"].sum()) > samples:
        raise BadReply(f"class counts do not fit {samples} samples")
    if bool((tensors["variance"] < 0).any()):
        raise BadReply("a class variance is less than 0")


def pooled_variance(sources: Iterable[Statistics], classes: int) -> np.ndarray:
    """Return V (K,), the variance of each class within source clients; NaN if no client has two samples of it."""
    squares, freedom = np.zeros(classes), np.zeros(classes)
    for source in sources:
        squares += source.count * source.variance
        freedom += np.maximum(0, source.count - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(freedom > 0, squares / freedom, np.nan)


def pairwise_shifts(client: Statistics, source: Statistics, variance: np.ndarray) -> np.ndarray:
    """Return s(c; n, k) (C, K) of every class c of a client and class k of one source client n; NaN where unknown."""
    distance = ((client.mean[:, None] - source.mean[None]) ** 2).sum(2)
    with np.errstate(invalid="ignore", divide="ignore"):
        noise = _noise(client)[:, None] + _noise(source)[None]
        return (distance - noise) / np.where(variance > 0, variance, np.nan)[None]


def nearest_shifts(client: Statistics, sources: Iterable[Statistics], variance: np.ndarray) -> np.ndarray:
    """Return min_n s(c; n, k) (C, K), the shift of each of a client's classes from each class at the nearest source."""
    nearest = np.full((len(client.count), len(variance)), np.nan)
    for source in sources:
        nearest = np.fmin(nearest, pairwise_shifts(client, source, variance))
    return nearest


def client_shift(client: Statistics, nearest: np.ndarray, same: Mapping[int, int]) -> float:
    """Return S = sum_c n_c s(c) / sum_c n_c over the client's classes c that are class `same[c]` of the federation.

    NaN if both sides have no class with enough samples in common.
    """
    pairs = [(client.count[c], nearest[c, k]) for c, k in same.items() if np.isfinite(nearest[c, k])]
    total = sum(count for count, _ in pairs)
    return float(sum(count * value for count, value in pairs) / total) if total else float("nan")


def own_shift(train: Statistics, held_out: Statistics) -> float | None:
    """Return S of a client's held-out samples from its training samples, or None if it has too few samples."""
    if held_out.count.sum() < MIN_HELD_OUT:
        return None
    variance = pooled_variance([train], len(train.count))
    classes = {c: c for c in range(len(train.count))}
    value = client_shift(held_out, pairwise_shifts(held_out, train, variance), classes)
    return None if np.isnan(value) else value


def shifts_between_sources(sources: Iterable[Statistics], variance: np.ndarray) -> list[float]:
    """Return S of every source client from all others, without clients that have no class in common with others."""
    held, same = list(sources), {c: c for c in range(len(variance))}
    others = [held[:place] + held[place + 1 :] for place in range(len(held))]
    found = [client_shift(a, nearest_shifts(a, b, variance), same) for a, b in zip(held, others, strict=True)]
    return [value for value in found if not np.isnan(value)]


def upper_quantile(shifts: Sequence[float]) -> float:
    """Return the 0.9 quantile of the source clients' shifts. With six or more, no single client determines it."""
    return float(np.quantile(shifts, 0.9, method="nearest")) if shifts else 0.0


def mean_embeddings(sources: Iterable[Statistics], classes: int, width: int) -> Tensor:
    """Return the mean embeddings (K', width) over source clients, of the classes that any of them has."""
    count, total = np.zeros(classes), np.zeros((classes, width))
    for source in sources:
        count += source.count
        total += source.count[:, None] * source.mean
    present = count > 0
    return torch.as_tensor(total[present] / count[present, None]).float()


def nearest_known(
    client: Statistics, nearest: np.ndarray, labels: Sequence[str], known: Sequence[str], at_least: int
) -> dict[str, tuple[str, float]]:
    """Return the nearest known class and its shift for each class that is not known and has `at_least` samples."""
    return {
        name: (known[int(np.nanargmin(nearest[c]))], float(np.nanmin(nearest[c])))
        for c, name in enumerate(labels)
        if name not in known and client.count[c] >= at_least and np.isfinite(nearest[c]).any()
    }


def _noise(client: Statistics) -> np.ndarray:
    """Return v_c / (n_c - 1), the expected effect of sampling on the distance; NaN with fewer than two samples."""
    return np.where(client.count > 1, client.variance / np.maximum(1, client.count - 1), np.nan)
