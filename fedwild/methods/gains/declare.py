"""Declare: clients describe where their classes lie in the embedding, and the newcomer names its classes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fedwild.contract import Client, Replies, Server
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload, check_like
from fedwild.core.rng import Rng
from fedwild.data import check_names
from fedwild.methods.gains.anti_forgetting import keep_anchor
from fedwild.methods.gains.probes import check_moments, class_moments, merge_moments, moments_spec
from fedwild.methods.gains.shifts import (
    MIN_SAMPLES,
    Statistics,
    check_statistics,
    class_statistics,
    client_shift,
    mean_embeddings,
    nearest_known,
    nearest_shifts,
    own_shift,
    pooled_variance,
    shared_classes,
    shifts_between_sources,
    upper_quantile,
)
from fedwild.methods.gains.stage import Arrival, Stage
from fedwild.models import Network

MIN_INPUTS = 10
"""A client sends no mean of fewer inputs, whatever `min_count` is: the mean of one sample is that sample."""


class Declare(Stage):
    """One round with all members and the newcomer. Afterwards, the head has rows for the classes declared."""

    def wants(self, server: Server) -> bool:
        """Whether there is a newcomer for this stage."""
        if self.stage <= len(server.newcomers):
            return True
        server.note(f"no newcomer to welcome in stage {self.stage} (see data.newcomers)")
        Arrival("nobody").store(server)
        return False

    def send(self, server: Server, client: str) -> Payload:
        info = {"newcomer": self.newcomer(server), "probes": server.public is None}
        return Payload.of(info, model=server.state.group("model"))

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = self.method.network(payload, client)
        if client.name == payload.info["newcomer"]:
            return self.declare(model, client)
        if self.params.keep:
            keep_anchor(client, payload, self.stage)
        return self.describe(model, client, payload.info["probes"])

    def declare(self, model: Network, client: Client) -> Payload:
        """Return the newcomer's classes, known or not, with their numbers of samples and statistics."""
        # JSON sorts names, and the statistics must have the same order.
        names = sorted(client.labels)
        own = client.train_as(names)
        reply = Payload(info={"samples": len(own), "labels": {name: client.labels[name] for name in names}})
        reply.put("classes", class_statistics(model, own, len(names), MIN_SAMPLES).to_tensors())
        return reply

    def describe(self, model: Network, client: Client, probes: bool) -> Payload:
        """Return a source client's statistics of the known classes and, for `probes`, moments of its inputs."""
        count = len(client.classes)
        train = class_statistics(model, client.train, count, self.params.min_count)
        spread = own_shift(train, class_statistics(model, client.validation, count, MIN_SAMPLES))
        reply = Payload(info={"samples": len(client.train), "own_shift": spread})
        reply.put("classes", train.to_tensors())
        if probes:
            reply.put("moments", class_moments(client.train, count, max(MIN_INPUTS, self.params.min_count)))
        return reply

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        check_declaration(server, reply)

    def merge(self, server: Server, replies: Replies) -> None:
        newcomer, info = self.newcomer(server), server.state.info
        labels = next((reply.payload.info.get("labels") for reply in replies if reply.client == newcomer), None)
        if not labels:
            server.note(f"{newcomer} is not welcomed: it did not reply or has no labelled samples")
            Arrival("nobody").store(server)
            self.exclude(server)
            return
        sizes = [reply.samples for reply in replies if reply.client != newcomer]
        arrival = Arrival(
            "declared",
            before=tuple(server.classes.entries),
            info={key: value for key, value in info.items() if key != "arrival"},
            declared=tuple(name for name in labels if name not in server.classes),
            samples=sum(sizes),
            sources=len(sizes),
        )
        # The whole state, including that of a correction, is restored if the newcomer does not become a member.
        for name, tensor in list(server.state.tensors.items()):
            server.state.tensors[f"before/{name}"] = tensor
        self.compare(server, replies, list(labels), arrival).store(server)
        moments = (r.payload.group("moments") for r in replies if r.client != newcomer and "moments" in r.payload)
        server.state.put("moments", merge_moments(moments))
        for name in arrival.declared:
            server.classes.add(name, newcomer, server.step.index)
        server.state.put("model", self.refit(server, server.state.group("model"), arrival.classes()))

    def compare(self, server: Server, replies: Replies, labels: Sequence[str], arrival: Arrival) -> Arrival:
        """Return the record with S of the newcomer, its limit T_D, and the nearest known classes."""
        newcomer, known, p = self.newcomer(server), server.classes.names, self.params
        sources = SourceStatistics(replies, newcomer)
        own = next(Statistics.from_tensors(r.payload.group("classes")) for r in replies if r.client == newcomer)
        variance = pooled_variance(sources, len(known))
        nearest = nearest_shifts(own, sources, variance)
        between = p.yardstick == "between"
        usual = shifts_between_sources(sources, variance) if between else own_shifts(replies)
        server.state.put("means", {"known": mean_embeddings(sources, len(known), own.mean.shape[1])})
        return replace(
            arrival,
            shift=client_shift(own, nearest, shared_classes(labels, known)),
            limit=max(p.least_shift, p.times * upper_quantile(usual)),
            alike=nearest_known(own, nearest, labels, known, p.min_count),
        )


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
