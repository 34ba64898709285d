"""Clusters, histograms and margins as clients send them: what is asked of them before they are used."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedwild.discovery.pool import Clusters
from fedwild.errors import BadReply
from fedwild.payload import Payload


def clusters_in(payload: Payload) -> Clusters:
    """A reply's clusters, as copies, so that the rest of the reply need not stay in memory."""
    group = payload.group("clusters")
    return Clusters(group["centroids"].double().numpy().copy(), group["counts"].numpy().copy())


def check_clusters(group: Mapping[str, Tensor], width: int, most: int, samples: int, labels: int | None = None) -> None:
    """Refuse clusters whose shapes, types or counts cannot be true."""
    wanted = {"centroids", "counts"} | (set() if labels is None else {"labels"})
    if set(group) != wanted:
        raise BadReply(f"clusters have {sorted(group)}, expected {sorted(wanted)}")
    centroids, counts = group["centroids"], group["counts"]
    if centroids.dim() != 2 or centroids.shape[1] != width or centroids.dtype != torch.float32:
        raise BadReply(f"centroids are {tuple(centroids.shape)} {centroids.dtype}, expected (m, {width}) float32")
    if len(centroids) > most:
        raise BadReply(f"{len(centroids)} clusters, where a client makes at most {most}")
    if counts.shape != centroids.shape[:1] or counts.dtype != torch.int64:
        raise BadReply(f"counts are {tuple(counts.shape)} {counts.dtype}, expected ({len(centroids)},) int64")
    # In double precision: whole numbers could wrap around.
    total = float(counts.double().sum())
    if len(counts) and (int(counts.min()) < 1 or total > samples):
        raise BadReply(f"counts add up to {total:.0f}, with {samples} samples")
    if labels is not None:
        told = group["labels"]
        if told.shape != (len(counts), labels) or told.dtype != torch.int64:
            raise BadReply(f"labels are {tuple(told.shape)} {told.dtype}, expected ({len(counts)}, {labels}) int64")
        if told.numel() and (int(told.min()) < 0 or not torch.equal(told.sum(1), counts)):
            raise BadReply("labels do not add up to the counts")


def check_cosines(group: Mapping[str, Tensor], samples: int) -> None:
    """Refuse histograms that count no samples, or others than the validation samples."""
    if any(float(counts.min()) < 0 for counts in group.values()) or float(group["known"].sum()) != samples:
        raise BadReply(f"cosines are no counts of samples, of which {samples} are known")


def check_margins(group: Mapping[str, Tensor], samples: int) -> None:
    """Refuse margins that are not one number per sample."""
    for name, margins in group.items():
        if name != "novel" or margins.shape != (samples,) or not margins.is_floating_point():
            raise BadReply(f"margins/{name} is {tuple(margins.shape)} {margins.dtype}, expected ({samples},) float32")
