"""Contribution-driven aggregation: who counts how much while a newcomer is taken in (Gains, Eq. 2-7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedwild.aggregation import weighted_mean, weighted_sum
from fedwild.initial import HEAD
from fedwild.protocol import Reply


def contributions(
    differences: Mapping[str, float], samples: Mapping[str, int], target_samples: int, by_samples: bool
) -> dict[str, float]:
    """CD_n of every source client n (Eq. 2, 3); together they weigh what the newcomer leaves.

    CD_n = a_n / sum_m a_m * sum_m |D_m| / (|D_T| + sum_m |D_m|) with a_n = 1 / (1 + Diff_n), and with `by_samples`
    a_n = |D_n| / (1 + Diff_n). A client without samples says nothing.
    """
    sizes = {name: samples[name] if by_samples else min(1, samples[name]) for name in differences}
    parts = {name: sizes[name] / (1.0 + difference) for name, difference in differences.items()}
    total, whole = sum(samples[name] for name in differences), sum(parts.values())
    share = total / (total + target_samples) if total else 0.0
    return {name: part / whole * share if whole else 0.0 for name, part in parts.items()}


def domain_model(
    replies: Iterable[Reply], encoder: Mapping[str, float], classifier: Mapping[str, float]
) -> dict[str, Tensor]:
    """E and C as sums over all clients with their weights (Eq. 4, 5)."""
    body = weighted_sum(replies, "model", lambda reply, name: 0.0 if name in HEAD else encoder[reply.client])
    head = weighted_sum(replies, "model", lambda reply, name: classifier[reply.client] if name in HEAD else 0.0)
    return {**body, **head}


def class_model(
    replies: Iterable[Reply], encoder: Mapping[str, float], newcomer: str, rows: Sequence[int]
) -> dict[str, Tensor]:
    """E as a sum with weights (Eq. 6); C with `rows` of the newcomer and the sources' mean in all others (Eq. 7).

    Sources' rows are weighed by samples, and are bit for bit their `weighted_mean`.
    """
    model = weighted_sum(replies, "model", lambda reply, name: 0.0 if name in HEAD else encoder[reply.client])
    target = next(head_of(reply) for reply in replies if reply.client == newcomer)
    sources = source_head(replies, newcomer)
    chosen = torch.as_tensor(rows, dtype=torch.int64)
    for name, tensor in target.items():
        model[name] = sources.get(name, tensor).index_copy(0, chosen, tensor[chosen])
    return model


def both_sides(
    model: Mapping[str, Tensor], replies: Iterable[Reply], newcomer: str, rows: Sequence[int]
) -> dict[str, Tensor]:
    """The model with new rows midway between the newcomer's and the sources' mean.

    The newcomer has learnt which of its samples belong to the new classes, the sources which of theirs do not.
    """
    chosen = torch.as_tensor(rows, dtype=torch.int64)
    midway = {name: (model[name] + mean).div(2)[chosen] for name, mean in source_head(replies, newcomer).items()}
    return {**model, **{name: model[name].index_copy(0, chosen, rows_) for name, rows_ in midway.items()}}


def source_head(replies: Iterable[Reply], newcomer: str) -> dict[str, Tensor]:
    """The sources' mean head, weighed by samples; nothing if they have none."""
    heads = (Reply(reply.client, reply.payload.only("model", HEAD)) for reply in replies if reply.client != newcomer)
    return weighted_mean(heads, "model") or {}


def head_of(reply: Reply) -> dict[str, Tensor]:
    """The head of a reply's model."""
    return reply.payload.only("model", HEAD).group("model")
