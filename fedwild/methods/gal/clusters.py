"""Clusters of embeddings as clients send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedwild.core.errors import BadReply
from fedwild.core.payload import Payload
from fedwild.discovery import Clusters


def to_tensors(**arrays: Any) -> dict[str, Tensor]:
    """Return arrays as tensors, real numbers in single precision."""
    tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def read_clusters(reply: Payload) -> Clusters:
    """Return a copy of the clusters in a reply, so that the rest of the reply can be freed."""
    group = reply.group("clusters")
    return Clusters(group["centroids"].double().numpy().copy(), group["counts"].numpy().copy())


def check_clusters(
    group: Mapping[str, Tensor], width: int, max_clusters: int, samples: int, classes: int | None = None
) -> None:
    """Reject clusters with wrong names, shapes, types or counts. With `classes`, they must have label counts."""
    expected = {"centroids", "counts"} | (set() if classes is None else {"labels"})
    if set(group) != expected:
        raise BadReply(f"clusters have {sorted(group)}, expected {sorted(expected)}")
    centroids, counts = group["centroids"], group["counts"]
    if centroids.dim() != 2 or centroids.shape[1] != width or centroids.dtype != torch.float32:
        raise BadReply(f"centroids are {tuple(centroids.shape)} {centroids.dtype}, expected (m, {width}) float32")
    if len(centroids) > max_clusters:
        raise BadReply(f"{len(centroids)} clusters, expected at most {max_clusters}")
    if counts.shape != centroids.shape[:1] or counts.dtype != torch.int64:
        raise BadReply(f"counts are {tuple(counts.shape)} {counts.dtype}, expected ({len(centroids)},) int64")
    # In double precision, since a sum of integers could overflow.
    total = float(counts.double().sum())
    if len(counts) and (int(counts.min()) < 1 or total > samples):
        raise BadReply(f"counts add up to {total:.0f}, with {samples} samples")
    if classes is not None:
        labels = group["labels"]
        if labels.shape != (len(counts), classes) or labels.dtype != torch.int64:
            shape = f"({len(counts)}, {classes})"
            raise BadReply(f"labels are {tuple(labels.shape)} {labels.dtype}, expected {shape} int64")
        if labels.numel() and (int(labels.min()) < 0 or not torch.equal(labels.sum(1), counts)):
            raise BadReply("labels do not add up to the counts")
