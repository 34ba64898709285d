"""Gains. Zhong, Jiang, Bao, Wang, Wang, Wang, Deng, Ren: Gains: fine-grained federated domain adaptation in open set.
NeurIPS 2025.

A federation is trained; then a newcomer arrives. It trains the federation's model on its own data, and the server sees
from what became of the model whether it brings nothing new, a new domain or new classes. If it brings something, all
clients train on, with source clients held near the model they had, and the server weighs them by how near they are to
the newcomer. For every newcomer, one after the other:

    source       rounds of FedAvg among the clients that are there already
    declare-1    everybody says where its classes lie; the newcomer names its own, and the head grows by new ones
    discover-1   the newcomer trains; what became of the model, and where its classes lie, tells what it brings (Eq. 1)
    adapt-1      rounds of contribution-driven aggregation (Eq. 2-7) with anti-forgetting (Eq. 8)
    judge-1      what clients had learnt before, is it still there? If not, the federation goes back
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedwild.adaptation.contributions import both_sides, class_model, contributions, domain_model
from fedwild.adaptation.declarations import Sources, check_declaration, own_shifts
from fedwild.adaptation.differences import classifier_difference, feature_difference, features
from fedwild.adaptation.judgement import accuracy, best_bias, check_judged, joined, judged
from fedwild.adaptation.keeping import Keeping
from fedwild.adaptation.probes import (
    class_moments,
    drawn_probes,
    merged_moments,
    public_probes,
)
from fedwild.adaptation.shifts import (
    FEWEST,
    Statistics,
    between_clients,
    class_statistics,
    mean_embeddings,
    most_alike,
    nearest_shifts,
    own_shift,
    pooled_variance,
    same_classes,
    shift,
)
from fedwild.adaptation.verdict import Evidence, Verdict, by_federation, by_fixed, synonyms
from fedwild.aggregation import running_mean
from fedwild.classes import ClassRegistry
from fedwild.corrections import Steering
from fedwild.discovery.truth import covered_truth
from fedwild.hyper import with_default
from fedwild.initial import HEAD, Initial
from fedwild.methods.base import METHODS
from fedwild.methods.fedavg import FedAvg
from fedwild.models import Network
from fedwild.payload import Payload
from fedwild.protocol import Client, Outcome, Phase, Replies, Reply, Server
from fedwild.rng import Rng
from fedwild.task import copied, weights_of
from fedwild.training import train

SOURCES = "sources/all"
"""All source clients as one, while they have one model; no client's name has a slash."""
SIDES = ("sources", "newcomer")
NEVER = 10**9
"""A round that no run comes to."""
FEWEST_INPUTS = 10
"""No mean of inputs leaves a client that is of fewer samples, whatever `min_count` says: of one, it is that sample."""


@METHODS.add("gains")
class Gains(FedAvg):
    """Takes in newcomers one after the other: what each brings is found out, and learnt without forgetting."""

    class Params(FedAvg.Params):
        rounds: int = Field(20, ge=0, description="rounds before anybody arrives; 0 with federation.start_from")
        stages: int = Field(1, ge=0, description="how many newcomers are welcomed, one after the other")
        adapt_rounds: int = Field(10, ge=0, description="rounds of adaptation to each newcomer")
        discover_epochs: int = Field(3, ge=1, description="the newcomer's passes over its data before the decision")
        rule: Literal["federation", "fixed"] = Field(
            "federation", description="limits from the source clients themselves, or fixed ones on Diff: t_f and t_c"
        )
        yardstick: Literal["within", "between"] = Field(
            "within", description="a domain is new beyond what a source's own samples differ by, or source clients do"
        )
        least_shift: float = Field(0.1, ge=0, description="a smaller shift is never a new domain")
        times: float = Field(2.0, ge=0, description="a new domain's shift is so many times the yardstick's largest")
        t_f: float = Field(0.154, ge=0, description="T_F with rule=fixed: above it is new knowledge")
        t_c: float = Field(0.25, ge=0, description="T_C with rule=fixed: above it are new classes")
        probes: int = Field(256, ge=1, description="samples that models are compared on")
        min_count: int = Field(
            10,
            ge=1,
            description="source clients send no means of classes with fewer samples; of inputs, never below 10",
        )
        synonym: float = Field(0.05, ge=0, description="a declared class nearer to a known one may be the same")
        sources: Literal["samples", "equal"] = Field(
            "samples", description="contributions are 1/(1+Diff), times the clients' samples or not"
        )
        new_rows: Literal["both", "newcomer"] = Field(
            "both", description="new classes' rows are the newcomer's (Eq. 7), or also learn from sources what is none"
        )
        target_weight: Literal["share", "released"] = Field(
            "share", description="the newcomer's weight: its share of samples, or N-1 as in the released program"
        )
        keep: float = Field(0.001, ge=0, description="lambda, how strongly source clients are held near what they had")
        tail: Literal["mean", "last"] = Field(
            "mean", description="a stage ends with the mean of the last half of its rounds' models, or the last one"
        )
        calibrate: bool = Field(
            True, description="new rows must win by what is best for both sides' validation samples"
        )
        max_forgetting: float | None = Field(
            None, ge=0, le=1, description="go back to before if source accuracy falls by more (validation samples)"
        )

    sends_embeddings = True
    grows = True
    digits = {
        "data": {"known": 6, "newcomers": {"newcomer": {"name": "digits", "classes": ["6", "7"]}}},
        "method": {"rounds": 20, "epochs": 3, "batch_size": 16, "adapt_rounds": 10},
    }
    params: Params

    # --- the plan of a run --------------------------------------------------------------------------------

    def phases(self) -> Sequence[Phase]:
        phases = [Phase("source", self.params.rounds)]
        for stage in range(1, self.params.stages + 1):
            phases += [Phase(f"declare-{stage}", 1), Phase(f"discover-{stage}", 1)]
            phases += [Phase(f"adapt-{stage}", self.params.adapt_rounds), Phase(f"judge-{stage}", 1)]
        return phases

    def arrivals(self, newcomers: Sequence[str]) -> dict[str, int | str]:
        """The first newcomer arrives in the first stage, and so on; those without a stage of their own never do."""
        stages = self.params.stages
        return {n: f"declare-{i}" if i <= stages else NEVER for i, n in enumerate(newcomers, start=1)}

    def wants(self, server: Server) -> bool:
        """A stage without a newcomer, or with nothing new, is over."""
        if server.step.phase == "source":
            return True
        if server.step.phase.startswith("declare-"):
            if server.step.stage <= len(server.newcomers):
                return True
            server.note(f"stage {server.step.stage}: there is no newcomer to welcome (data.newcomers)")
            server.state.info["arrival"] = {"kind": "nobody"}
            return False
        arrival = server.state.info["arrival"]
        if server.step.phase.startswith("discover-"):
            return arrival["kind"] == "declared"
        return arrival["kind"] in ("domain", "classes")

    def participants(self, server: Server, present: Sequence[str], participation: float, rng: Rng) -> Sequence[str]:
        """Members by lot when they train; all of them when they are asked. The stage's newcomer always."""
        outside = set(server.newcomers) - set(server.state.info.get("welcomed", []))
        members = [name for name in present if name not in outside]
        if server.step.phase == "source":
            return super().participants(server, members, participation, rng)
        newcomer = self.newcomer(server)
        if newcomer not in present:
            return []
        if server.step.phase.startswith("adapt-") and members:
            members = list(super().participants(server, members, participation, rng))
        if server.step.phase.startswith("discover-"):
            members = []
        return sorted([*members, newcomer])

    def bears_silence(self, server: Server) -> bool:
        """A newcomer that does not show its model is not welcomed, and the federation goes on without it."""
        return server.step.phase.startswith("discover-")

    def newcomer(self, server: Server) -> str:
        """Who is welcomed in this stage."""
        return server.newcomers[server.step.stage - 1]

    # --- what travels -------------------------------------------------------------------------------------

    def send(self, server: Server, client: str) -> Payload:
        if server.step.phase == "source":
            return super().send(server, client)
        arrival = server.state.info.get("arrival", {})
        info = {"newcomer": self.newcomer(server), "known": len(server.classes) - len(arrival.get("declared", []))}
        if server.step.phase.startswith("declare-"):
            info = {"newcomer": self.newcomer(server), "probes": server.public is None}
        if server.step.phase.startswith(("declare-", "discover-")):
            return Payload.of(info, model=server.state.group("model"))
        if server.step.phase.startswith("judge-"):
            return Payload.of(info, model=server.state.group("model"), before=server.state.group("before/model"))
        payload = super().send(server, client)
        payload.info = info
        return payload

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        phase = server.step.phase
        if phase == "source" or phase.startswith("adapt-"):
            return super().expects(server)
        spec = server.task.spec(self.outputs(len(server.classes)), self.bias)
        return {"model": spec} if phase.startswith("discover-") else {}

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        if server.step.phase.startswith("declare-"):
            check_declaration(server, reply)
        elif server.step.phase.startswith("judge-"):
            for group in ("before", "model"):
                check_judged(reply.group(group), reply.info["samples"])

    # --- the client's half --------------------------------------------------------------------------------

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        phase = client.step.phase
        if phase.startswith("declare-"):
            return self.declare(payload, client)
        if phase.startswith("discover-"):
            return self.show(payload, client, rng)
        if phase.startswith("judge-"):
            return self.judge(payload, client)
        return super().local(payload, client, rng)

    def declare(self, payload: Payload, client: Client) -> Payload:
        """Where a client's classes lie; the newcomer's are all that it has labels of, known or not.

        Means of inputs are only of classes with ten samples or more, since a mean of few shows each of them.
        """
        model = client.task.network(payload.group("model"), self.outputs(len(client.classes)), self.bias)
        if client.name == payload.info["newcomer"]:
            # JSON sorts names, and rows must go with them.
            names = sorted(client.labels)
            own = client.train_as(names)
            reply = Payload(info={"samples": len(own), "labels": {name: client.labels[name] for name in names}})
            reply.put("classes", class_statistics(model, own, len(names), FEWEST).tensors())
            return reply
        self.remember(payload, client)
        count = len(client.classes)
        train, held_out = class_statistics(model, client.train, count, self.params.min_count), client.validation
        spread = own_shift(train, class_statistics(model, held_out, count, FEWEST))
        reply = Payload(info={"samples": len(client.train), "own_shift": spread})
        reply.put("classes", train.tensors())
        if payload.info["probes"]:
            reply.put("moments", class_moments(client.train, count, max(FEWEST_INPUTS, self.params.min_count)))
        return reply

    def show(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """The newcomer trains from the federation's model."""
        model = client.task.network(payload.group("model"), self.outputs(len(client.classes)), self.bias)
        settings = self.params.model_copy(update={"epochs": self.params.discover_epochs})
        trained = train(model, client.train, settings, self.objective, Steering(), rng)
        return Payload.of({"samples": len(client.train), **trained.info()}, model=client.task.weights(model))

    def remember(self, payload: Payload, client: Client) -> None:
        """Keep W_n(0,0), what a source has when the newcomer comes, for as long as the stage lasts."""
        if self.params.keep:
            client.state.put("anchor", payload.group("model"))
            client.state.info["stage"] = client.step.stage

    def steering(self, client: Client, model: Network, payload: Payload) -> Steering:
        """In adaptation a source is held near what it had before the newcomer came (Eq. 8)."""
        steering = super().steering(client, model, payload)
        source = client.step.phase.startswith("adapt-") and client.name != payload.info["newcomer"]
        if not source or not self.params.keep:
            return steering
        new_rows = range(payload.info["known"], len(client.classes))
        return Keeping(steering, model, self.anchor(payload, client), self.params.keep, new_rows)

    def anchor(self, payload: Payload, client: Client) -> dict[str, Tensor]:
        """W_n(0,0) with the new rows as they are now; for a source that was not there then, the first model it gets."""
        if client.state.info.get("stage") != client.step.stage:
            self.remember(payload, client)
        model, kept = payload.group("model"), client.state.group("anchor")
        known, outputs = payload.info["known"], self.outputs(len(client.classes))
        for name in HEAD:
            if name in kept and len(kept[name]) < outputs:
                new = model[name][known : known + outputs - len(kept[name])]
                kept[name] = torch.cat([kept[name][:known], new, kept[name][known:]])
        return kept

    def judge(self, payload: Payload, client: Client) -> Payload:
        """How validation samples are answered, now and before; of sources, those of old classes."""
        known, samples = payload.info["known"], client.validation
        if client.name != payload.info["newcomer"]:
            samples = samples.take(torch.nonzero(samples.y < known).flatten())
        reply = Payload(info={"samples": len(samples)})
        for group, classes in (("before", known), ("model", len(client.classes))):
            model = client.task.network(payload.group(group), self.outputs(classes), self.bias, slot="judge")
            reply.put(group, judged(model, samples, known, classes))
        return reply

    # --- the server's half --------------------------------------------------------------------------------

    def merge(self, server: Server, replies: Replies) -> None:
        phase = server.step.phase
        if phase == "source":
            super().merge(server, replies)
        elif phase.startswith("declare-"):
            self.take_declaration(server, replies)
        elif phase.startswith("discover-"):
            self.take_evidence(server, replies)
        elif phase.startswith("adapt-"):
            self.aggregate(server, replies)
            self.average_tail(server)
        else:
            self.take_judgement(server, replies)

    def take_declaration(self, server: Server, replies: Replies) -> None:
        """Compare where classes lie, and grow the head by those that the newcomer declares and nobody knows."""
        newcomer, info = self.newcomer(server), server.state.info
        labels = next((reply.payload.info.get("labels") for reply in replies if reply.client == newcomer), None)
        if not labels:
            server.note(f"{newcomer} is not welcomed: it did not answer, or has no labelled samples")
            info["arrival"] = {"kind": "nobody"}
            self.leave_outside(server)
            return
        declared = [name for name in labels if name not in server.classes]
        sizes = {reply.client: reply.samples for reply in replies if reply.client != newcomer}
        arrival = {
            "kind": "declared",
            "before": server.classes.to_json(),
            "info": {key: value for key, value in info.items() if key != "arrival"},
            "declared": declared,
            "samples": sum(sizes.values()),
            "sources": len(sizes),
        }
        # All of the state, whatever a correction keeps in it, goes back if the newcomer does not stay.
        for name, tensor in list(server.state.tensors.items()):
            server.state.tensors[f"before/{name}"] = tensor
        info["arrival"] = arrival | self.compare(server, replies, list(labels))
        offers = (r.payload.group("moments") for r in replies if r.client != newcomer and "moments" in r.payload)
        server.state.put("moments", merged_moments(offers))
        for name in declared:
            server.classes.add(name, newcomer, server.step.index)
        server.state.put("model", self.refitted(server, server.state.group("model"), before(server)))

    def compare(self, server: Server, replies: Replies, labels: list[str]) -> dict[str, Any]:
        """S of the newcomer, the limit for it, and for each declared class the known one that is nearest."""
        newcomer, p = self.newcomer(server), self.params
        sources = Sources(replies, newcomer)
        own = next(Statistics.of(r.payload.group("classes")) for r in replies if r.client == newcomer)
        variance = pooled_variance(sources, len(server.classes))
        nearest = nearest_shifts(own, sources, variance)
        spreads = between_clients(sources, variance) if p.yardstick == "between" else own_shifts(replies)
        server.state.put("means", {"known": mean_embeddings(sources, len(server.classes), own.mean.shape[1])})
        return {
            "shift": shift(own, nearest, same_classes(labels, server.classes.names)),
            "limit": max(p.least_shift, p.times * typical_largest(spreads)),
            "alike": most_alike(own, nearest, labels, server.classes.names, p.min_count),
        }

    def refitted(self, server: Server, weights: Mapping[str, Tensor], classes: ClassRegistry) -> dict[str, Tensor]:
        """These weights, whose head is for `classes`, with a head for the server's classes; new rows are fresh."""
        fresh = weights_of(server.task.build(self.outputs(len(server.classes)), server.rng, self.bias))
        return Initial(dict(weights), classes, "before").onto(fresh, server.classes.names)

    def take_evidence(self, server: Server, replies: Replies) -> None:
        """Decide what the newcomer brings; if it is new, make the first joint model."""
        newcomer = self.newcomer(server)
        own = next((copied(reply.payload.group("model")) for reply in replies if reply.client == newcomer), None)
        if own is None:
            server.note(f"{newcomer} is not welcomed: its model did not arrive")
            self.go_back(server, "nobody")
            self.leave_outside(server)
            return
        evidence = self.evidence(server, own)
        verdict = self.verdict(evidence)
        for text in (verdict.told(newcomer, evidence), *synonyms(evidence, self.params.synonym)):
            server.note(text)
        server.finding("discovery", client=newcomer, **verdict.figures(evidence))
        if verdict.kind == "nothing":
            self.go_back(server, "nothing")
            self.admit(server)
        else:
            self.begin_with_both(server, own, verdict, next(reply.samples for reply in replies))

    def evidence(self, server: Server, own: Mapping[str, Tensor]) -> Evidence:
        """Diff^F and Diff^C of the newcomer's model, and what the declared classes' rows moved to."""
        start, probes, arrival = server.state.group("model"), self.probe_samples(server), server.state.info["arrival"]
        embedded = self.features_of(server, start, probes)
        diff_f = feature_difference(self.features_of(server, own, probes), embedded)
        moved = own["head.weight"] - start["head.weight"]
        rows = {name: moved[server.classes.names.index(name)] for name in arrival["declared"]}
        means = server.state.group("means")["known"]
        # Where no source has enough samples of any class, the probes stand for them.
        means = means if len(means) else embedded
        cosines = {name: float(F.cosine_similarity(row[None], means, eps=1e-12).max()) for name, row in rows.items()}
        found = {key: arrival[key] for key in ("shift", "limit", "alike")}
        return Evidence(diff_f, classifier_difference(own, start), rows=cosines, **found)

    def probe_samples(self, server: Server) -> Tensor:
        """What models are compared on: public samples, or draws from the class means that sources offered."""
        draws = Rng(server.rng.seed).torch(f"probes of stage {server.step.stage}")
        if server.public is not None:
            return public_probes(server.public, self.params.probes, draws)
        moments = server.state.group("moments")
        if moments:
            return drawn_probes(moments, self.params.probes, draws)
        return torch.rand((self.params.probes, *server.task.input_shape), generator=draws)

    def features_of(self, server: Server, weights: Mapping[str, Tensor], probes: Tensor) -> Tensor:
        """What a model makes of the probes (P, d)."""
        return features(server.task.network(weights, len(weights["head.weight"]), self.bias, slot="probed"), probes)

    def verdict(self, evidence: Evidence) -> Verdict:
        """Nothing, domain or classes."""
        p = self.params
        if p.rule == "fixed":
            return by_fixed(evidence, p.t_f, p.t_c)
        return by_federation(evidence)

    def begin_with_both(self, server: Server, own: Mapping[str, Tensor], verdict: Verdict, own_samples: int) -> None:
        """Iteration 0: all sources still have the federation's model, the newcomer has its own (Eq. 4-7)."""
        newcomer, arrival, trained_for = self.newcomer(server), server.state.info["arrival"], server.classes
        server.classes = before(server)
        for name in verdict.classes:
            server.classes.add(name, newcomer, server.step.index)
        arrival["kind"], arrival["declared"] = verdict.kind, list(verdict.classes)
        models = {SOURCES: (server.state.group("model"), arrival["samples"]), newcomer: (own, own_samples)}
        pair = [
            Reply(name, Payload.of({"samples": samples}, model=self.refitted(server, weights, trained_for)))
            for name, (weights, samples) in models.items()
        ]
        self.put_together(server, pair, {SOURCES: 0.0}, {SOURCES: 0.0}, arrival["sources"])

    def aggregate(self, server: Server, replies: Replies) -> None:
        """Weigh sources by their nearness to the newcomer (Eq. 2, 3) and put the models together (Eq. 4-7)."""
        newcomer = self.newcomer(server)
        own = next((copied(reply.payload.group("model")) for reply in replies if reply.client == newcomer), None)
        if own is None or len(replies) == 1:
            who = newcomer if own is None else "every other client"
            server.note(f"{who} is missing: the model stays as it is in this round")
            return
        probes = self.probe_samples(server)
        wanted = self.features_of(server, own, probes)
        diff_f, diff_c = {}, {}
        for reply in replies:
            if reply.client != newcomer:
                weights = reply.payload.group("model")
                diff_f[reply.client] = feature_difference(self.features_of(server, weights, probes), wanted)
                diff_c[reply.client] = classifier_difference(weights, own)
        self.put_together(server, replies, diff_f, diff_c, len(diff_f))
        self.correction.merge(server, replies)

    def average_tail(self, server: Server) -> None:
        """Over the last half of the rounds keep the models' mean, which the stage ends with.

        Where one side has only old classes and the other only new ones, each round's model leans to one of them.
        """
        half = self.params.adapt_rounds // 2
        count = server.step.round - half + 1
        if self.params.tail == "last" or count < 1:
            return
        model, mean = server.state.group("model"), server.state.group("mean")
        mean = running_mean(mean, model, count) if mean else model
        server.state.put("mean", mean)
        if server.step.round == self.params.adapt_rounds - 1:
            server.state.put("model", mean)
            server.state.drop("mean")

    def put_together(
        self,
        server: Server,
        replies: Iterable[Reply],
        diff_f: Mapping[str, float],
        diff_c: Mapping[str, float],
        sources: int,
    ) -> None:
        """The joint model from everybody's, and the weights that it was made with in the log."""
        newcomer, arrival = self.newcomer(server), server.state.info["arrival"]
        sizes = {reply.client: reply.samples for reply in replies}
        encoder = self.weights_by(diff_f, sizes, newcomer, sources)
        if arrival["kind"] == "domain":
            classifier = self.weights_by(diff_c, sizes, newcomer, sources)
            model = domain_model(replies, encoder, classifier)
            server.finding("weights", encoder=encoder, classifier=classifier)
        else:
            new = range(len(arrival["before"]), len(server.classes))
            model = class_model(replies, encoder, newcomer, new)
            if self.params.new_rows == "both":
                model = both_sides(model, replies, newcomer, new)
            server.finding("weights", encoder=encoder)
        if all(bool(torch.isfinite(tensor).all()) for tensor in model.values() if tensor.is_floating_point()):
            server.state.put("model", model)
        else:
            server.note("the joint model is not finite: the model stays as it is in this round")

    def weights_by(
        self, differences: Mapping[str, float], sizes: Mapping[str, int], newcomer: str, sources: int
    ) -> dict[str, float]:
        """The weight of every client, the newcomer's included; all together 1, but for the released program's."""
        others = contributions(differences, sizes, sizes[newcomer], self.params.sources == "samples")
        if self.params.target_weight == "released":
            return {**others, newcomer: float(sources)}
        return {**others, newcomer: 1.0 - sum(others.values())}

    def take_judgement(self, server: Server, replies: Replies) -> None:
        """Set what new rows must win by; then keep what was learnt, or go back if too much was forgotten for it."""
        newcomer, known = self.newcomer(server), len(server.state.info["arrival"]["before"])
        now = {whose: joined(group_of(replies, newcomer, whose, "model")) for whose in SIDES}
        then = {whose: joined(group_of(replies, newcomer, whose, "before")) for whose in SIDES}
        bias = 0.0
        if self.params.calibrate:
            bias = best_bias(joined(now.values()), known, len(server.classes) - known)
        self.set_apart(server, known, bias)
        figures = {}
        for whose in SIDES:
            right, before_right = accuracy(now[whose], bias), accuracy(then[whose], math.inf)
            figures[whose] = {"samples": len(right), "before": share(before_right), "now": share(right)}
            if len(right):
                row, name = figures[whose], newcomer if whose == "newcomer" else "source clients"
                server.note(f"{name}: {row['before']:.1%} right before, {row['now']:.1%} now (validation samples)")
        forgotten, limit = figures["sources"]["before"] - figures["sources"]["now"], self.params.max_forgetting
        # Where sources have no validation samples, nobody can say that it is little.
        refused = limit is not None and not forgotten <= limit
        server.finding("judgement", client=newcomer, bias=bias, forgotten=forgotten, refused=refused, **figures)
        if refused:
            amount = "nobody knows how much is" if math.isnan(forgotten) else f"{forgotten:.1%} are"
            server.note(f"{amount} forgotten, max_forgetting = {limit}: back to before {newcomer} came")
            self.go_back(server, "refused")
            self.leave_outside(server)
        else:
            self.admit(server)

    def set_apart(self, server: Server, known: int, bias: float) -> None:
        """Take what new rows must win by off their biases."""
        weights = dict(server.state.group("model"))
        weights["head.bias"] = weights["head.bias"].clone()
        weights["head.bias"][known : len(server.classes)] -= bias
        server.state.put("model", weights)

    def admit(self, server: Server) -> None:
        """The newcomer is a member from now on."""
        info = server.state.info
        info["welcomed"] = [*info.get("welcomed", []), self.newcomer(server)]
        info["arrival"] = {"kind": "welcomed"}
        self.tidy(server)

    def leave_outside(self, server: Server) -> None:
        """The newcomer, though it may be there, is no member."""
        info = server.state.info
        info["outside"] = [*info.get("outside", []), self.newcomer(server)]

    def go_back(self, server: Server, kind: str) -> None:
        """The federation as it was before the newcomer came, bit for bit."""
        arrival, server.classes = server.state.info["arrival"], before(server)
        server.state.tensors = server.state.group("before")
        server.state.info = {**arrival["info"], "arrival": {"kind": kind}}

    def tidy(self, server: Server) -> None:
        """Let go of what only this stage needed."""
        for group in ("before", "moments", "means", "mean"):
            server.state.drop(group)

    # --- answers and figures ------------------------------------------------------------------------------

    def answering(self, server: Server) -> Network:
        """The mean of the stage's last models, where there is one by now."""
        group = "mean" if "mean" in server.state else "model"
        outputs = self.outputs(len(server.classes))
        return server.task.network(server.state.group(group), outputs, self.bias, slot="predictor")

    def members(self, server: Server) -> Sequence[str]:
        """A newcomer that failed or was sent away has no say in the threshold."""
        return [name for name in server.clients if name not in server.state.info.get("outside", [])]

    def truth(self, server: Server, outcome: Outcome) -> Tensor:
        """Classes that an earlier run discovered, and nobody has named, stand for those that they cover best."""
        return covered_truth(server, outcome)


def changed(name: str, default: Any) -> Any:
    """A setting of Gains' with another default."""
    return with_default(Gains.Params, name, default)


@METHODS.add("gains-paper")
class GainsPaper(Gains):
    """Gains as published: fixed thresholds, sources weighed by nearness alone, the paper's local training."""

    class Params(Gains.Params):
        epochs: int = changed("epochs", 5)
        batch_size: int = changed("batch_size", 128)
        momentum: float = changed("momentum", 0.2)
        weight_decay: float = changed("weight_decay", 5e-4)
        discover_epochs: int = changed("discover_epochs", 5)
        keep: float = changed("keep", 0.3)
        rule: Literal["federation", "fixed"] = changed("rule", "fixed")
        sources: Literal["samples", "equal"] = changed("sources", "equal")
        new_rows: Literal["both", "newcomer"] = changed("new_rows", "newcomer")
        tail: Literal["mean", "last"] = changed("tail", "last")
        calibrate: bool = changed("calibrate", False)


@METHODS.add("gains-released")
class GainsReleased(GainsPaper):
    """Gains as its authors' program computes it: the newcomer weighs N-1, so that weights add up to more than 1."""

    class Params(GainsPaper.Params):
        target_weight: Literal["share", "released"] = with_default(Gains.Params, "target_weight", "released")


def before(server: Server) -> ClassRegistry:
    """The classes before this stage's newcomer came."""
    return ClassRegistry.from_json(server.state.info["arrival"]["before"])


def group_of(replies: Replies, newcomer: str, whose: str, group: str) -> Iterator[dict[str, Tensor]]:
    """A group of the newcomer's reply or of all the others', copied out of their replies."""
    for reply in replies:
        if (reply.client == newcomer) == (whose == "newcomer"):
            yield {name: reply.payload.group(group)[name].clone() for name in ("margin", "new", "right")}


def typical_largest(spreads: Sequence[float]) -> float:
    """The 0.9 quantile of what source clients say of themselves: of six and more, no single one can set it."""
    return float(np.quantile(spreads, 0.9, method="nearest")) if spreads else 0.0


def share(right: np.ndarray) -> float:
    """The share of samples that are answered rightly; NaN without samples."""
    return float(right.mean()) if len(right) else math.nan
