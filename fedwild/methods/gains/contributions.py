"""Contribution-driven aggregation: each client's weight in the joint model (Gains, Eq. 2-7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedwild.aggregation.means import weighted_mean, weighted_sum
from fedwild.contract import Reply
from fedwild.contract.initial import HEAD


def contributions(
    differences: Mapping[str, float], samples: Mapping[str, int], target_samples: int, by_samples: bool
) -> dict[str, float]:
    """Return CD_n of every source client n (Eq. 2, 3). Their sum is the source clients' share of all samples.

    CD_n = a_n / sum_m a_m * sum_m |D_m| / (|D_T| + sum_m |D_m|) with a_n = 1 / (1 + Diff_n), or with `by_samples`
    a_n = |D_n| / (1 + Diff_n). A client without samples has weight 0.
    """
    sizes = {name: samples[name] if by_samples else min(1, samples[name]) for name in differences}
    parts = {name: sizes[name] / (1.0 + difference) for name, difference in differences.items()}
    total, whole = sum(samples[name] for name in differences), sum(parts.values())
    share = total / (total + target_samples) if total else 0.0
    return {name: part / whole * share if whole else 0.0 for name, part in parts.items()}


def client_weights(
    differences: Mapping[str, float],
    samples: Mapping[str, int],
    newcomer: str,
    by_samples: bool,
    target_weight: float | None = None,
) -> dict[str, float]:
    """Return the weight of every client. The newcomer gets `target_weight`, or what the source clients leave of 1."""
    sources = contributions(differences, samples, samples[newcomer], by_samples)
    own = 1.0 - sum(sources.values()) if target_weight is None else float(target_weight)
    return {**sources, newcomer: own}


def domain_model(
    replies: Iterable[Reply], encoder: Mapping[str, float], classifier: Mapping[str, float]
) -> dict[str, Tensor]:
    """Return E and C as sums over all clients, each with its own weights (Eq. 4, 5)."""
    body = weighted_sum(replies, "model", lambda reply, name: 0.0 if name in HEAD else encoder[reply.client])
    head = weighted_sum(replies, "model", lambda reply, name: classifier[reply.client] if name in HEAD else 0.0)
    return {**body, **head}


def class_model(
    replies: Iterable[Reply], encoder: Mapping[str, float], newcomer: str, rows: Sequence[int]
) -> dict[str, Tensor]:
    """Return E as a weighted sum (Eq. 6), and C with the newcomer's `rows` and the source clients' mean (Eq. 7).

    The mean over source clients is weighted by samples, and bit-equal to `weighted_mean`.
    """
    model = weighted_sum(replies, "model", lambda reply, name: 0.0 if name in HEAD else encoder[reply.client])
    target = next(head_of(reply) for reply in replies if reply.client == newcomer)
    sources = source_head(replies, newcomer)
    chosen = torch.as_tensor(rows, dtype=torch.int64)
    for name, tensor in target.items():
        model[name] = sources.get(name, tensor).index_copy(0, chosen, tensor[chosen])
    return model


def average_new_rows(
    model: Mapping[str, Tensor], replies: Iterable[Reply], newcomer: str, rows: Sequence[int]
) -> dict[str, Tensor]:
    """Return the model with `rows` of its head halfway between their present values and the source clients' mean.

    The newcomer has learnt which of its samples belong to the new classes; the source clients have learnt which of
    theirs do not.
    """
    chosen = torch.as_tensor(rows, dtype=torch.int64)
    halfway = {name: (model[name] + mean).div(2)[chosen] for name, mean in source_head(replies, newcomer).items()}
    return {**model, **{name: model[name].index_copy(0, chosen, new) for name, new in halfway.items()}}


def source_head(replies: Iterable[Reply], newcomer: str) -> dict[str, Tensor]:
    """Return the mean head of the source clients, weighted by samples, or nothing if they have no samples."""
    heads = (Reply(reply.client, reply.payload.only("model", HEAD)) for reply in replies if reply.client != newcomer)
    return weighted_mean(heads, "model") or {}


def head_of(reply: Reply) -> dict[str, Tensor]:
    """Return the head of a reply's model."""
    return reply.payload.only("model", HEAD).group("model")
