"""Declare: clients describe where their classes lie in the embedding, and the newcomer names its classes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fedwild.contract import Client, Payload, Replies, Rng, Server
from fedwild.core.classes import NOVEL
from fedwild.core.errors import BadReply, UserError
from fedwild.data import check_names
from fedwild.methods.gains import shifts
from fedwild.methods.gains.anchors import keep_anchor
from fedwild.methods.gains.probes import check_moments, class_moments, merge_moments
from fedwild.methods.gains.stage import Arrival, Stage
from fedwild.methods.rehearsal import keep_answers
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
        info: dict[str, Any] = {"newcomer": self.newcomer(server), "probes": server.public is None}
        info |= self.about_anchors(server)
        if server.classes.novel:
            info["discovered"] = [i for i, entry in enumerate(server.classes.entries) if entry.origin == NOVEL]
        return Payload.of(info, model=server.state.group("model"))

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = self.method.network(payload, client)
        if client.name == payload.info["newcomer"]:
            return self.declare(model, client)
        if self.params.keep:
            keep_anchor(client, payload.group("model"), self.stage, payload.info.get("undone"))
        keep_answers(client, model, payload.info.get("discovered", []))
        return self.describe(model, client, payload.info["probes"])

    def declare(self, model: Network, client: Client) -> Payload:
        """Return the newcomer's classes, known or not, with their numbers of samples and statistics."""
        # JSON sorts names, and the statistics must have the same order.
        names = sorted(client.labels)
        own = client.train_as(names)
        statistics = shifts.class_statistics(model, own, len(names), shifts.MIN_SAMPLES)
        info = {"samples": len(own), "labels": {name: client.labels[name] for name in names}}
        return Payload.of(info, classes=statistics.to_tensors())

    def describe(self, model: Network, client: Client, probes: bool) -> Payload:
        """Return a source client's statistics of the known classes and, for `probes`, moments of its inputs."""
        count = len(client.classes)
        train = shifts.class_statistics(model, client.train, count, self.params.min_count)
        spread = shifts.own_shift(train, shifts.class_statistics(model, client.validation, count, shifts.MIN_SAMPLES))
        reply = Payload.of({"samples": len(client.train), "own_shift": spread}, classes=train.to_tensors())
        if probes:
            reply.put("moments", class_moments(client.train, count, max(MIN_INPUTS, self.params.min_count)))
        return reply

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

        def sources() -> Iterator[shifts.Statistics]:
            """Yield the statistics of each source client, one in memory at a time."""
            for reply in replies:
                # A reply that declares classes does not count, whoever sent it: they are not the federation's.
                if not reply.payload.info.get("labels"):
                    yield shifts.Statistics.from_tensors(reply.payload.group("classes"))

        own = next(shifts.Statistics.from_tensors(r.payload.group("classes")) for r in replies if r.client == newcomer)
        variance = shifts.pooled_variance(sources(), len(known))
        nearest = shifts.nearest_shifts(own, sources(), variance)
        if p.yardstick == "between":
            usual = shifts.shifts_between_sources(sources(), variance)
        else:
            infos = [reply.payload.info for reply in replies]
            usual = [float(i["own_shift"]) for i in infos if not i.get("labels") and i.get("own_shift") is not None]
        server.state.put("means", {"known": shifts.mean_embeddings(sources(), len(known), own.mean.shape[1])})
        same = {c: known.index(name) for c, name in enumerate(labels) if name in known}
        return replace(
            arrival,
            shift=shifts.client_shift(own, nearest, same),
            limit=max(p.least_shift, p.times * shifts.upper_quantile(usual)),
            alike=shifts.nearest_known(own, nearest, labels, known, p.min_count),
        )

    def check(self, server: Server, reply: Payload) -> None:
        """Reject invalid class names, and counts or statistics that are inconsistent."""
        super().check(server, reply)
        samples, moments, known = reply.info["samples"], reply.group("moments"), len(server.classes)
        if moments:
            check_moments(moments, known, server.task.input_shape, samples)
        spread = reply.info.get("own_shift")
        is_number = isinstance(spread, (int, float)) and not isinstance(spread, bool) and math.isfinite(spread)
        if spread is not None and not is_number:
            raise BadReply(f"info 'own_shift' is {str(spread)[:40]}, expected a finite number")
        labels = reply.info.get("labels", {})
        if not isinstance(labels, dict) or len(labels) > self.params.max_classes:
            raise BadReply(f"info 'labels' must be a table of at most {self.params.max_classes} classes")
        for name, count in labels.items():
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise BadReply(f"class {name!r} has {str(count)[:40]} samples, expected a whole number of at least 1")
        if labels and sum(labels.values()) != samples:
            raise BadReply(f"the counts in info 'labels' do not add up to info 'samples' = {samples}")
        width = server.state.group("model")["head.weight"].shape[1]
        shifts.check_statistics(reply.group("classes"), len(labels) or known, width, samples)
        try:
            check_names("this client", labels, server.classes.names)
        except UserError as problem:
            raise BadReply(str(problem)) from problem
