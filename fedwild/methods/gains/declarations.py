"""Reading and checking what clients send in the phase declare."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedwild.contract import Replies, Server
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload, check_like
from fedwild.data import check_names
from fedwild.methods.gains.probes import check_moments, moments_spec
from fedwild.methods.gains.shifts import Statistics, check_statistics

MAX_CLASSES = 1000
"""A newcomer may not declare more classes."""


class SourceStatistics:
    """The class statistics of all source clients, read one at a time on every pass.

    A reply that declares classes does not count, whoever sent it: its statistics are not of the federation's classes.
    """

    def __init__(self, replies: Replies, newcomer: str) -> None:
        self._replies, self._newcomer = replies, newcomer

    def __iter__(self) -> Iterator[Statistics]:
        for reply in self._replies:
            if reply.client != self._newcomer and not reply.payload.info.get("labels"):
                yield Statistics.from_tensors(reply.payload.group("classes"))


def own_shifts(replies: Replies) -> list[float]:
    """Return the shift between held-out and training samples of each source client that sent one."""
    sent = [reply.payload.info.get("own_shift") for reply in replies if not reply.payload.info.get("labels")]
    return [float(value) for value in sent if value is not None]


def check_declaration(server: Server, reply: Payload) -> None:
    """Reject invalid class names, and counts or statistics that are inconsistent."""
    samples, moments = reply.info["samples"], reply.group("moments")
    if moments:
        check_like(moments, moments_spec(len(server.classes), server.task.input_shape), "moments")
        check_moments(moments, samples)
    spread = reply.info.get("own_shift")
    is_number = isinstance(spread, (int, float)) and not isinstance(spread, bool) and math.isfinite(spread)
    if spread is not None and not is_number:
        raise BadReply(f"info 'own_shift' is {str(spread)[:40]}, expected a finite number")
    labels = reply.info.get("labels", {})
    if not isinstance(labels, dict) or len(labels) > MAX_CLASSES:
        raise BadReply(f"info 'labels' must be a table of at most {MAX_CLASSES} classes")
    for name, count in labels.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise BadReply(f"class {name!r} has {str(count)[:40]} samples, expected a whole number of at least 1")
    if labels and sum(labels.values()) != samples:
        raise BadReply(f"the counts in info 'labels' do not add up to info 'samples' = {samples}")
    width = server.state.group("model")["head.weight"].shape[1]
    check_statistics(reply.group("classes"), len(labels) or len(server.classes), width, samples)
    try:
        check_names("this client", labels, server.classes.names)
    except UserError as problem:
        raise BadReply(str(problem)) from problem
