"""What clients say when a newcomer comes: reading it, and refusing what cannot be."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedwild.adaptation.probes import check_moments, moments_spec
from fedwild.adaptation.shifts import Statistics, check_statistics
from fedwild.data import check_names
from fedwild.errors import BadReply, UserError
from fedwild.payload import Payload, check_like
from fedwild.protocol import Replies, Server

MOST_CLASSES = 1000
"""No newcomer may declare more."""


class Sources:
    """The class statistics of all source clients, read one at a time on every pass.

    Whoever declares classes without being the newcomer is no source: its statistics are of classes of its own.
    """

    def __init__(self, replies: Replies, newcomer: str) -> None:
        self._replies, self._newcomer = replies, newcomer

    def __iter__(self) -> Iterator[Statistics]:
        for reply in self._replies:
            if reply.client != self._newcomer and not reply.payload.info.get("labels"):
                yield Statistics.of(reply.payload.group("classes"))


def own_shifts(replies: Replies) -> list[float]:
    """How far source clients' held-out samples are from what they train on, of those that can say."""
    told = [reply.payload.info.get("own_shift") for reply in replies if not reply.payload.info.get("labels")]
    return [float(value) for value in told if value is not None]


def check_declaration(server: Server, reply: Payload) -> None:
    """Refuse names that cannot be classes' names, and counts or means that do not fit."""
    samples, moments = reply.info["samples"], reply.group("moments")
    if moments:
        check_like(moments, moments_spec(len(server.classes), server.task.input_shape), "moments")
        check_moments(moments, samples)
    spread = reply.info.get("own_shift")
    number = isinstance(spread, (int, float)) and not isinstance(spread, bool) and math.isfinite(spread)
    if spread is not None and not number:
        raise BadReply(f"info 'own_shift' is {str(spread)[:40]}, expected a number")
    labels = reply.info.get("labels", {})
    if not isinstance(labels, dict) or len(labels) > MOST_CLASSES:
        raise BadReply(f"info 'labels' must be a table of at most {MOST_CLASSES} classes")
    for name, count in labels.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise BadReply(f"class {name!r} has {str(count)[:40]} samples, expected a whole number from 1 on")
    if labels and sum(labels.values()) != samples:
        raise BadReply("the classes' samples do not add up to info 'samples'")
    width = server.state.group("model")["head.weight"].shape[1]
    check_statistics(reply.group("classes"), len(labels) or len(server.classes), width, samples)
    try:
        check_names("this client", labels, server.classes.names)
    except UserError as problem:
        raise BadReply(str(problem)) from problem
