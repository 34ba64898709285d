"""Training samples on which the clients' final personal heads disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from fedwild.contract import ImageExhibit, Record
from fedwild.core.errors import UserError
from fedwild.core.rng import Rng
from fedwild.core.text import percent
from fedwild.data.samples import Samples
from fedwild.methods.fedoss.bank import Bank
from fedwild.methods.fedoss.boundary import RULES, HeadRule
from fedwild.methods.fedoss.branches import make_branch
from fedwild.methods.fedoss.layout import Layouts
from fedwild.methods.fedoss.settings import FedOSSParams
from fedwild.models.inference import INFERENCE_BATCH

MAX_SAMPLES = 1000
"""Training samples that are shown to the heads, drawn at random."""
MAX_IMAGES = 24


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
    samples = draw_samples(reduce(Samples.join, (client.train for client in clients)))
    with torch.no_grad():
        parts = [
            rule.bank.logits(model.upto(x.to(server.task.device), cut)) for x, _ in samples.batches(INFERENCE_BATCH)
        ]
    agreement = rule.agreement(torch.cat(parts, dim=1).cpu(), samples.y)
    found = torch.nonzero(rule.is_boundary(agreement)).flatten()
    found = found[(agreement[found] - 0.5).abs().argsort(stable=True)]
    return Disputed(samples.take(found), agreement[found], len(samples))


def draw_samples(samples: Samples) -> Samples:
    """Return at most `MAX_SAMPLES` different samples at random, in the order of their rows."""
    rows, first = np.unique(samples.index.numpy(), return_index=True)
    chosen = np.sort(Rng(0).numpy("disputed").permutation(len(rows))[:MAX_SAMPLES])
    return samples.take(first[chosen])


def show_disputed(disputed: Disputed, classes: Sequence[str], section: str, title: str) -> ImageExhibit:
    """Return the most divided samples as images, one row per class. Raise `UserError` if there are none."""
    samples = disputed.samples.take(torch.arange(min(MAX_IMAGES, len(disputed.samples))))
    if not len(samples):
        raise UserError(f"The clients' final heads do not disagree about any of {disputed.examined} samples.")
    images = to_images(samples)
    captions = [f"{percent(share, 0)} correct" for share in disputed.agreement.tolist()]
    places = {classes[k]: torch.nonzero(samples.y == k).flatten() for k in samples.classes}
    return ImageExhibit(
        section,
        title,
        "Training samples on which the clients' final personal heads are most divided, and the share of heads that "
        f"classify each correctly. Found among {disputed.examined:,} samples.",
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
