"""Discover: the newcomer trains the federation's model, and the server decides what it brings (Gains, Eq. 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F

from fedwild.contract import Client, Draw, Groups, Replies, Reply, Server
from fedwild.contract.task import copied
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.methods.gains.evidence import (
    Discovery,
    Evidence,
    decide_by_federation,
    decide_by_limits,
    synonym_notes,
)
from fedwild.methods.gains.probes import classifier_difference, feature_difference, probe_samples
from fedwild.methods.gains.stage import Arrival, Stage
from fedwild.training.corrections import ClientCorrection
from fedwild.training.loop import train

SOURCES = "sources/all"
"""Stands for all source clients while they have the same model. No client's name has a slash."""


class Discover(Stage):
    """One round with the newcomer alone. If it does not reply, the run continues without it."""

    requires_replies = False

    def wants(self, server: Server) -> bool:
        return Arrival.of(server).kind == "declared"

    def who(self, server: Server, present: Sequence[str], draw: Draw) -> Sequence[str]:
        return [name for name in present if name == self.newcomer(server)]

    def send(self, server: Server, client: str) -> Payload:
        return Payload.of(self.about(server), model=server.state.group("model"))

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = self.method.network(payload, client)
        settings = self.params.model_copy(update={"epochs": self.params.discover_epochs})
        trained = train(model, client.train, settings, self.method.objective, ClientCorrection(), rng)
        return Payload.of({"samples": len(client.train), **trained.info()}, model=client.task.weights(model))

    def expects(self, server: Server) -> Groups:
        return {"model": server.task.spec(self.method.outputs(len(server.classes)), self.method.bias)}

    def merge(self, server: Server, replies: Replies) -> None:
        newcomer = self.newcomer(server)
        reply = next((reply for reply in replies if reply.client == newcomer), None)
        if reply is None:
            server.note(f"{newcomer} is not welcomed: it did not send its model")
            self.restore(server, "nobody")
            self.exclude(server)
            return
        own = copied(reply.payload.group("model"))
        evidence = self.measure(server, own)
        discovery = self.decide(evidence)
        for text in (discovery.describe(newcomer, evidence), *synonym_notes(evidence, self.params.synonym)):
            server.note(text)
        server.finding("discovery", client=newcomer, **discovery.figures(evidence))
        if discovery.kind == "nothing":
            self.restore(server, "nothing")
            self.admit(server)
        else:
            self.begin(server, own, discovery, reply.samples)

    def measure(self, server: Server, own: Mapping[str, Tensor]) -> Evidence:
        """Return the evidence: Diff^F and Diff^C of the newcomer's model, and the updates of declared classes' rows."""
        start, arrival = server.state.group("model"), Arrival.of(server)
        probes = probe_samples(server, self.stage, self.params.probes)
        embedded = self.embed(server, start, probes)
        diff_f = feature_difference(self.embed(server, own, probes), embedded)
        moved = own["head.weight"] - start["head.weight"]
        rows = {name: moved[server.classes.names.index(name)] for name in arrival.declared}
        means = server.state.group("means")["known"]
        # If no source client has enough samples of any class, the probes replace the class means.
        means = means if len(means) else embedded
        cosines = {name: float(F.cosine_similarity(row[None], means, eps=1e-12).max()) for name, row in rows.items()}
        diff_c = classifier_difference(own, start)
        return Evidence(diff_f, diff_c, arrival.shift, arrival.limit, cosines, arrival.alike)

    def decide(self, evidence: Evidence) -> Discovery:
        """Return what the newcomer brings by the chosen rule."""
        if self.params.rule == "fixed":
            return decide_by_limits(evidence, self.params.t_f, self.params.t_c)
        return decide_by_federation(evidence)

    def begin(self, server: Server, own: Mapping[str, Tensor], discovery: Discovery, own_samples: int) -> None:
        """Make the joint model of iteration 0 (Eq. 4-7): all source clients still have the federation's model."""
        newcomer, arrival, trained_for = self.newcomer(server), Arrival.of(server), server.classes
        server.classes = arrival.classes()
        for name in discovery.classes:
            server.classes.add(name, newcomer, server.step.index)
        replace(arrival, kind=discovery.kind, declared=discovery.classes).store(server)
        models = {SOURCES: (server.state.group("model"), arrival.samples), newcomer: (own, own_samples)}
        pair = [
            Reply(name, Payload.of({"samples": samples}, model=self.refit(server, weights, trained_for)))
            for name, (weights, samples) in models.items()
        ]
        self.combine(server, pair, {SOURCES: 0.0}, {SOURCES: 0.0}, arrival.sources)
