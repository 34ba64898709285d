"""Discover: the newcomer trains the federation's model, and the server decides what it brings (Gains, Eq. 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any

from torch.nn import functional as F

from fedwild.contract import Client, Draw, Groups, Payload, Replies, Reply, Rng, Server, Tensors, copy_tensors
from fedwild.methods.gains.limits import kind_by_limits
from fedwild.methods.gains.probes import classifier_difference, probe_samples
from fedwild.methods.gains.stage import Arrival, Kind, Stage
from fedwild.training import ClientCorrection, train

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
        trained = train(model, client.train, settings, self.objective, ClientCorrection(), rng)
        return Payload.of({"samples": len(client.train), **trained.info()}, model=client.task.weights(model))

    def expects(self, server: Server) -> Groups:
        return {"model": server.task.spec(self.method.outputs(len(server.classes)), self.method.bias)}

    def merge(self, server: Server, replies: Replies) -> None:
        newcomer, p = self.newcomer(server), self.params
        reply = next((reply for reply in replies if reply.client == newcomer), None)
        if reply is None:
            server.note(f"{newcomer} is not welcomed: it did not send its model")
            self.restore(server, "nobody")
            self.exclude(server)
            return
        own = copy_tensors(reply.payload.group("model"))
        evidence = self.measure(server, own)
        discovery = self.decide(evidence)
        sentence = discovery.describe(newcomer, evidence)
        if p.decide == "rounds":
            sentence = f"{newcomer} is welcomed whatever it brings: the kind of shift is decided in every round"
        for text in (sentence, *synonym_notes(evidence, p.synonym)):
            server.note(text)
        server.finding("discovery", client=newcomer, **discovery.figures(evidence))
        if discovery.kind == "nothing":
            self.restore(server, "nothing")
            self.admit(server)
        else:
            kind: Kind = discovery.kind
            if p.decide == "rounds":
                kind = kind_by_limits(evidence.diff_f, evidence.diff_c, p.t_f, p.t_c, p.inclusive)
            self.begin(server, own, discovery, reply.samples, kind)

    def decide(self, evidence: Evidence) -> Discovery:
        """Return what the newcomer brings by the rule of the settings."""
        p = self.params
        if p.decide == "rounds":
            return accept_declared(evidence, p.t_f, p.t_c)
        if p.rule == "fixed":
            return decide_by_limits(evidence, p.t_f, p.t_c, p.inclusive)
        return decide_by_federation(evidence)

    def measure(self, server: Server, own: Tensors) -> Evidence:
        """Return the evidence: Diff^F and Diff^C of the newcomer's model, and the updates of declared classes' rows."""
        start, arrival = server.state.group("model"), Arrival.of(server)
        probes = probe_samples(server, self.stage, self.params.probes)
        embedded = self.embed(server, start, probes)
        diff_f = self.diff_f(self.embed(server, own, probes), embedded)
        moved = own["head.weight"] - start["head.weight"]
        rows = {name: moved[server.classes.names.index(name)] for name in arrival.declared}
        means = server.state.group("means")["known"]
        # If no source client has enough samples of any class, the probes replace the class means.
        means = means if len(means) else embedded
        cosines = {name: float(F.cosine_similarity(row[None], means, eps=1e-12).max()) for name, row in rows.items()}
        diff_c = classifier_difference(own, start)
        return Evidence(diff_f, diff_c, arrival.shift, arrival.limit, cosines, arrival.alike)

    def begin(self, server: Server, own: Tensors, discovery: Discovery, own_samples: int, kind: Kind) -> None:
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
        self.combine(server, pair, {SOURCES: (0.0, 0.0)}, arrival.sources, kind)


BRINGS: dict[Kind, str] = {"nothing": "nothing new", "domain": "a new domain", "classes": "new classes"}


@dataclass(frozen=True)
class Evidence:
    """The measurements behind the decision."""

    diff_f: float
    """Diff^F between the newcomer's model and the federation's (Eq. 1)."""
    diff_c: float
    """Diff^C between them."""
    shift: float
    """S: the shift of the newcomer's samples from source clients' samples of the same classes; NaN without any."""
    limit: float
    """T_D: the largest S that is not a new domain."""
    rows: Mapping[str, float] = field(default_factory=dict)
    """For each declared class, the largest cosine between its row's update and a known class's mean embedding."""
    alike: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """For each declared class, the nearest known class and the shift from it."""


@dataclass(frozen=True)
class Discovery:
    """What the newcomer brings."""

    kind: Kind
    classes: tuple[str, ...]
    """The declared classes that are new."""
    measured: Mapping[str, tuple[float, float]]
    """The figures behind the decision, each with its limit."""

    def figures(self, evidence: Evidence) -> dict[str, Any]:
        """Return the decision and its evidence as plain values, for the log."""
        return {"kind": self.kind, "classes": list(self.classes), "decided": dict(self.measured), **vars(evidence)}

    def describe(self, newcomer: str, evidence: Evidence) -> str:
        """Return the decision as a sentence."""
        names = f" ({', '.join(self.classes)})" if self.classes else ""
        domain = ", in a new domain" if self.kind == "classes" and evidence.shift > evidence.limit else ""
        known = {name: pair for name, pair in self.measured.items() if not math.isnan(pair[0])}
        figures = "; ".join(f"{name} {value:.3g}, limit {limit:.3g}" for name, (value, limit) in known.items())
        figures = figures or "no source client has enough samples of these classes to compare with"
        return f"{newcomer} brings {BRINGS[self.kind]}{names}{domain} ({figures})"


def decide_by_federation(evidence: Evidence) -> Discovery:
    """Decide by limits from the source clients: S > T_D is a new domain, and a row drawn to samples is a new class.

    Without samples, a row only moves away from embeddings: its update has no positive cosine with any of them.
    """
    new = tuple(name for name, cosine in evidence.rows.items() if cosine > 0)
    # If no source client has labels of these classes, nothing can be compared, and there is much to learn.
    is_domain = math.isnan(evidence.shift) or evidence.shift > evidence.limit
    kind: Kind = "classes" if new else "domain" if is_domain else "nothing"
    measured = {f"cosine of {name}'s row": (cosine, 0.0) for name, cosine in evidence.rows.items()}
    return Discovery(kind, new, {"shift": (evidence.shift, evidence.limit), **measured})


def decide_by_limits(evidence: Evidence, t_f: float, t_c: float, inclusive: bool = False) -> Discovery:
    """Decide by the paper's rule. Without declared classes there are no new ones."""
    kind = kind_by_limits(evidence.diff_f, evidence.diff_c, t_f, t_c, inclusive)
    kind = "domain" if kind == "classes" and not evidence.rows else kind
    return Discovery(kind, tuple(evidence.rows) if kind == "classes" else (), differences(evidence, t_f, t_c))


def accept_declared(evidence: Evidence, t_f: float, t_c: float) -> Discovery:
    """Accept all declared classes, and adapt in any case, as the released program does."""
    kind: Kind = "classes" if evidence.rows else "domain"
    return Discovery(kind, tuple(evidence.rows), differences(evidence, t_f, t_c))


def differences(evidence: Evidence, t_f: float, t_c: float) -> dict[str, tuple[float, float]]:
    """Return Diff^F and Diff^C with their limits."""
    return {"Diff^F": (evidence.diff_f, t_f), "Diff^C": (evidence.diff_c, t_c)}


def synonym_notes(evidence: Evidence, max_shift: float) -> list[str]:
    """Return a sentence for each declared class that looks like a known class under another name."""
    return [
        f"class {name!r} looks like the known class {known!r} (shift {value:.2g}): if they are the same, use "
        f"--label {quote(f'{name}={known}')}"
        for name, (known, value) in evidence.alike.items()
        if value < max_shift
    ]
