"""Rehearsing discovered classes: no labels exist for them, so clients use the answers of the model that knows them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from fedwild.contract import Client
from fedwild.data.samples import Samples
from fedwild.models import Network
from fedwild.models.inference import INFERENCE_BATCH

GROUP = "rehearsal"
"""The group of a client's state that has the answers."""
HELD_OUT = 5
"""One of so many samples is kept for judging and never trained on."""


@torch.inference_mode()
def keep_answers(client: Client, model: Network, discovered: Collection[int]) -> None:
    """Keep the unlabelled samples that the model answers with a discovered class, in the client's state."""
    client.state.drop(GROUP)
    if not discovered:
        return
    model.eval()
    device, classes = model.head.weight.device, len(client.classes)
    batches = client.unlabelled.batches(INFERENCE_BATCH)
    parts = [model(x.to(device))[:, :classes].argmax(1).cpu() for x, _ in batches]
    answers = torch.cat([torch.empty(0, dtype=torch.int64), *parts])
    places = torch.nonzero(torch.isin(answers, torch.tensor(sorted(discovered)))).flatten()
    client.state.put(GROUP, {"places": places, "labels": answers[places]})


def kept_answers(client: Client, held_out: bool) -> Samples:
    """Return the samples of `keep_answers`, labelled with those answers: the held-out ones, or the others."""
    kept = client.state.group(GROUP)
    if not kept:
        return client.unlabelled.take([])
    chosen = (torch.arange(len(kept["places"])) % HELD_OUT == 0) == held_out
    return client.unlabelled.take(kept["places"][chosen]).with_labels(kept["labels"][chosen])


def training_also_on(client: Client, more: Samples) -> Client:
    """Return the client with more training samples; its state is the same object."""
    if not len(more):
        return client
    train = client.train.join(more)

    def view(part: str, *where: Any, **how: Any) -> Any:
        return train if part == "train" and not where and not how else client.view(part, *where, **how)

    return replace(client, view=view)
