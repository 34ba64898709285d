"""What a report shows about FedOSS: figures of its boundary samples, and samples on which personal heads disagree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedwild.contract import BarExhibit, CurveExhibit, Exhibit, ImageExhibit, Record, Rng
from fedwild.core.errors import UserError
from fedwild.core.text import percent
from fedwild.data.samples import Samples
from fedwild.methods.fedoss.boundary import RULES, HeadRule
from fedwild.methods.fedoss.heads import Bank, Layouts, make_branch
from fedwild.methods.fedoss.settings import FedOSSParams
from fedwild.models.inference import INFERENCE_BATCH

SECTION = "Boundary samples"
DISPUTED = "What clients disagree about"
PARTS = {"model_bytes": "model", "head_bytes": "personal head", "statistics_bytes": "statistics"}
OVER_CLIENTS: dict[str, Callable[[list[float]], float]] = {"mean over clients": fmean, "minimum": min, "maximum": max}
MAX_SAMPLES = 1000
"""Training samples that are shown to the heads, drawn at random."""
MAX_IMAGES = 24


def boundary_exhibits(record: Record, params: FedOSSParams, layouts: Layouts) -> list[Exhibit]:
    """Return the clients' figures by round, the sizes of their replies, and images of disputed samples."""
    shares, distances = (lines(reported(record.events, key)) for key in ("boundary", "displacement"))
    if not shares["minimum"]:
        return []
    sizes = {name: sum(map(sum, reported(record.events, key).values())) / 1e6 for key, name in PARTS.items()}
    about_shares = "Share of a client's samples that lie near a decision boundary."
    about_distances = "How far boundary samples are pushed, in units of their own length."
    try:
        disputed: Exhibit = show_disputed(find_disputed(record, params, layouts), record.server.classes.names)
    except UserError as reason:
        disputed = Exhibit(SECTION, DISPUTED, str(reason))
    return [
        CurveExhibit(SECTION, "Boundary samples", about_shares, "round", "share of samples", shares, True),
        CurveExhibit(SECTION, "Displacement", about_distances, "round", "lengths", distances),
        BarExhibit(SECTION, "Replies", "Megabytes that all clients sent, by content.", sizes),
        disputed,
    ]


def reported(events: Iterable[Mapping[str, Any]], key: str) -> dict[int, list[float]]:
    """Return the numbers that clients reported under a key, by number of the round."""
    # A resumed run may repeat a round: the last reply of a client counts.
    infos = {(e["index"] + 1, e["client"]): e.get("info") or {} for e in events if e["event"] == "client"}
    values: dict[int, list[float]] = {}
    for number, client in sorted(infos):
        value = infos[number, client].get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            values.setdefault(number, []).append(float(value))
    return values


def lines(values: Mapping[int, list[float]]) -> dict[str, list[tuple[float, float]]]:
    """Return the mean, minimum and maximum over clients as lines over rounds."""
    return {name: [(float(x), of(found)) for x, found in values.items()] for name, of in OVER_CLIENTS.items()}


@dataclass(frozen=True)
class Disputed:
    """Boundary samples by the final heads, the most divided first."""

    samples: Samples
    agreement: Tensor
    """(n,) the share of heads that classify each sample correctly."""
    examined: int
    """The number of samples that were shown to the heads."""


def find_disputed(record: Record, params: FedOSSParams, layouts: Layouts) -> Disputed:
    """Return the boundary samples among all clients' training samples. Raise `UserError` if heads cannot disagree."""
    server, kind = record.server, RULES[params.boundary]
    if not issubclass(kind, HeadRule):
        raise UserError(f"method.boundary = {params.boundary!r} uses no heads, so there is no disagreement to show.")
    if record.client is None:
        raise UserError("The clients' samples are not on this machine, so they are not shown.")
    clients = [client for client in map(record.client, server.clients) if len(client.train)]
    owners = [client for client in clients if "head" in client.state]
    if len(owners) < 2:
        raise UserError("Fewer than two clients have a personal head, so there is no disagreement to show.")
    classes = len(server.classes)
    model = server.task.network(server.state.group("model"), classes + 1).eval()
    cut = layouts.of(server.task, classes).cut
    heads, held = [client.state.group("head") for client in owners], [client.train.classes for client in owners]
    rule = kind(params, cut, Bank(make_branch(params.branch, model, cut, classes), heads, held, classes))
    samples = reduce(Samples.join, (client.train for client in clients))
    # Different samples at random, in the order of their rows.
    rows, first = np.unique(samples.index.numpy(), return_index=True)
    samples = samples.take(first[np.sort(Rng(0).numpy("disputed").permutation(len(rows))[:MAX_SAMPLES])])
    inputs = (x.to(server.task.device) for x, _ in samples.batches(INFERENCE_BATCH))
    with torch.no_grad():
        answers = torch.cat([rule.bank.logits(model.upto(x, cut)) for x in inputs], dim=1).cpu()
    agreement = rule.agreement(answers, samples.y)
    found = torch.nonzero(rule.is_boundary(agreement)).flatten()
    found = found[(agreement[found] - 0.5).abs().argsort(stable=True)]
    return Disputed(samples.take(found), agreement[found], len(samples))


def show_disputed(disputed: Disputed, classes: Sequence[str]) -> ImageExhibit:
    """Return the most divided samples as images, one row per class. Raise `UserError` if there are none."""
    samples = disputed.samples.take(torch.arange(min(MAX_IMAGES, len(disputed.samples))))
    if not len(samples):
        raise UserError(f"The clients' final heads do not disagree about any of {disputed.examined} samples.")
    images = to_images(samples)
    found = zip(disputed.agreement.tolist(), disputed.samples.index.tolist(), strict=True)
    captions = [f"{percent(share, 0)} correct, row {row}" for share, row in found]
    places = {classes[k]: torch.nonzero(samples.y == k).flatten() for k in samples.classes}
    return ImageExhibit(
        SECTION,
        DISPUTED,
        "Training samples on which the clients' final personal heads are most divided, the share of heads that "
        f"classify each correctly, and its row in the training data. Found among {disputed.examined:,} samples.",
        rows={name: images[where] for name, where in places.items()},
        captions={name: [captions[i] for i in where.tolist()] for name, where in places.items()},
    )


def to_images(samples: Samples) -> Tensor:
    """Return stored samples as images (n, channels, height, width); of volumes, the middle slice."""
    x = samples.x.index_select(0, samples.index)
    if x.dim() not in (4, 5) or x.shape[1] not in (1, 3):
        raise UserError(f"Samples of shape {tuple(x.shape[1:])} are not images, so they are not shown.")
    x = x[:, :, x.shape[2] // 2] if x.dim() == 5 else x
    return x if x.dtype == torch.uint8 else x.float().clamp(0, 1)
