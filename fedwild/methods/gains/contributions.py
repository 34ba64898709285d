"""Contribution-driven aggregation: each client's weight in the joint model (Gains, Eq. 2-7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedwild.aggregation.means import weighted_mean, weighted_sum
from fedwild.contract import HEAD, Reply


def relative_differences(differences: Mapping[str, float]) -> dict[str, float]:
    """Return Diff_n / (1/N sum_m Diff_m). If all Diffs are small, 1 / (1 + Diff) is nearly the same without it."""
    mean = sum(differences.values()) / len(differences)
    return {name: difference / mean if mean else 0.0 for name, difference in differences.items()}


def client_weights(
    differences: Mapping[str, float],
    samples: Mapping[str, int],
    newcomer: str,
    by_samples: bool,
    target_weight: float | None = None,
) -> dict[str, float]:
    """Return CD_n of every source client n (Eq. 2, 3), whose sum is their share of all samples, and the newcomer's.

    CD_n = a_n / sum_m a_m * sum_m |D_m| / (|D_T| + sum_m |D_m|) with a_n = 1 / (1 + Diff_n), or with `by_samples`
    a_n = |D_n| / (1 + Diff_n). A client without samples has weight 0. The newcomer gets `target_weight`, or what the
    source clients leave of 1.
    """
    sizes = {name: samples[name] if by_samples else min(1, samples[name]) for name in differences}
    parts = {name: sizes[name] / (1.0 + difference) for name, difference in differences.items()}
    total, whole = sum(samples[name] for name in differences), sum(parts.values())
    share = total / (total + samples[newcomer]) if total else 0.0
    sources = {name: part / whole * share if whole else 0.0 for name, part in parts.items()}
    return {**sources, newcomer: 1.0 - sum(sources.values()) if target_weight is None else float(target_weight)}


def sample_weights(samples: Mapping[str, int]) -> dict[str, float]:
    """Return each client's share of all samples, FedAvg's weights."""
    total = sum(samples.values())
    return {name: count / total if total else 0.0 for name, count in samples.items()}


def domain_model(
    replies: Iterable[Reply], encoder: Mapping[str, float], classifier: Mapping[str, float]
) -> dict[str, Tensor]:
    """Return E and C as sums over all clients, each with its own weights (Eq. 4, 5)."""
    return weighted_sum(replies, "model", lambda reply, name: (classifier if name in HEAD else encoder)[reply.client])


def class_model(
    replies: Iterable[Reply], encoder: Mapping[str, float], newcomer: str, rows: Sequence[int], halfway: bool = False
) -> dict[str, Tensor]:
    """Return E as a weighted sum (Eq. 6), and C with the newcomer's `rows` and the source clients' mean (Eq. 7).

    The mean over source clients is weighted by samples, and bit-equal to `weighted_mean`. With `halfway`, `rows` are
    halfway between that mean and the newcomer's: the newcomer has learnt which of its samples belong to the new
    classes, the source clients which of theirs do not.
    """
    model = weighted_sum(replies, "model", lambda reply, name: 0.0 if name in HEAD else encoder[reply.client])
    heads = (Reply(reply.client, reply.payload.only("model", HEAD)) for reply in replies)
    means = weighted_mean((head for head in heads if head.client != newcomer), "model") or {}
    own = next(reply.payload.only("model", HEAD).group("model") for reply in replies if reply.client == newcomer)
    chosen = torch.as_tensor(rows, dtype=torch.int64)
    for name, tensor in own.items():
        # Without samples at source clients, the whole head is the newcomer's.
        mean = means.get(name, tensor)
        new = (tensor + mean).div(2) if halfway else tensor
        model[name] = mean.index_copy(0, chosen, new[chosen])
    return model
