"""Gains. Zhong, Jiang, Bao, Wang, Wang, Wang, Deng, Ren: Gains: fine-grained federated domain adaptation in open set.
NeurIPS 2025.

A federation is trained; then a newcomer arrives. It trains the federation's model on its own data, and the server sees
from what became of the model whether it brings nothing new, a new domain or new classes. If it brings something, all
clients train on, with source clients held near the model they had, and the server weighs them by how near they are to
the newcomer. For every newcomer, one after the other:

    source       rounds of FedAvg among the clients that are there already
    declare-1    the newcomer names its classes; the head grows by those that are new
    discover-1   the newcomer trains, and so do source clients on its mix of classes: the yardstick (Eq. 1)
    adapt-1      rounds of contribution-driven aggregation (Eq. 2-7) with anti-forgetting (Eq. 8)
    judge-1      what clients had learnt before, is it still there? If not, the federation goes back
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedwild.adaptation.contributions import both_sides, class_model, contributions, domain_model
from fedwild.adaptation.differences import classifier_difference, feature_difference, features, row_changes
from fedwild.adaptation.keeping import Keeping
from fedwild.adaptation.probes import (
    check_moments,
    class_moments,
    drawn_probes,
    merged_moments,
    moments_spec,
    public_probes,
)
from fedwild.adaptation.resampling import resampled
from fedwild.adaptation.verdict import Evidence, Verdict, by_federation, by_fixed
from fedwild.classes import ClassRegistry
from fedwild.corrections import Steering
from fedwild.data import Samples, check_names
from fedwild.discovery.truth import covered_truth
from fedwild.errors import BadReply, UserError
from fedwild.hyper import with_default
from fedwild.initial import Initial
from fedwild.methods.base import METHODS
from fedwild.methods.fedavg import FedAvg
from fedwild.models import Network
from fedwild.payload import Payload, check_like
from fedwild.protocol import Client, Outcome, Phase, Replies, Reply, Server, Step
from fedwild.rng import Rng
from fedwild.task import copied, weights_of
from fedwild.training import train

MOST_CLASSES, MOST_CHARACTERS = 1000, 100
"""No newcomer may declare more classes, nor longer names."""
JUDGED_AT_ONCE = 256
SOURCES = ""
"""All source clients as one, while they have one model; no client has this name."""


@METHODS.add("gains")
class Gains(FedAvg):
    """Takes in newcomers one after the other: what each brings is found out, and learnt without forgetting."""

    class Params(FedAvg.Params):
        rounds: int = Field(20, ge=0, description="rounds before anybody arrives; 0 with federation.start_from")
        stages: int = Field(1, ge=0, description="how many newcomers are welcomed, one after the other")
        adapt_rounds: int = Field(10, ge=0, description="rounds of adaptation to each newcomer")
        discover_epochs: int = Field(3, ge=1, description="passes over the data from which discovery judges")
        discover_samples: int = Field(2000, ge=1, description="samples that source clients train on as a yardstick")
        rule: Literal["federation", "fixed"] = Field(
            "federation", description="thresholds from how source clients differ, or fixed ones: t_f and t_c"
        )
        deviations: float = Field(3.0, ge=0, description="how many standard deviations of source clients are not new")
        least_spread: float = Field(0.1, ge=0, description="least standard deviation, of the logarithm of Diff^F")
        row_ratio: float = Field(1.5, ge=0, description="a class is new if its row moves so much more than old rows do")
        t_f: float = Field(0.154, ge=0, description="T_F with rule=fixed: above it is new knowledge")
        t_c: float = Field(0.25, ge=0, description="T_C with rule=fixed: above it are new classes")
        probes: int = Field(256, ge=1, description="samples that models are compared on")
        min_count: int = Field(
            10, ge=1, description="without public data: classes with fewer samples have no mean sent"
        )
        sources: Literal["samples", "equal"] = Field(
            "samples", description="contributions are 1/(1+Diff), times the clients' samples or not"
        )
        new_rows: Literal["both", "newcomer"] = Field(
            "both", description="new classes' rows are the newcomer's (Eq. 7), or also learn from sources what is none"
        )
        target_weight: Literal["share", "released"] = Field(
            "share", description="the newcomer's weight: its share of samples, or N-1 as in the released program"
        )
        keep: float = Field(0.3, ge=0, description="lambda, how strongly source clients are held near what they had")
        max_forgetting: float | None = Field(
            None, ge=0, le=1, description="go back to before if source accuracy falls by more (validation samples)"
        )

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
        """The first newcomer arrives in the first stage, and so on; those without a stage of their own wait."""
        return {name: f"declare-{stage}" for stage, name in enumerate(newcomers[: self.params.stages], start=1)}

    def wants(self, server: Server) -> bool:
        """A stage without a newcomer, or with nothing new, is over."""
        if server.step.phase == "source":
            return True
        if server.step.phase.startswith("declare-"):
            if stage_of(server.step) <= len(server.newcomers):
                return True
            server.note(f"stage {stage_of(server.step)}: there is no newcomer to welcome (data.newcomers)")
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
        if server.step.phase.startswith("declare-") and server.public is not None:
            members = []
        return sorted([*members, newcomer])

    def newcomer(self, server: Server) -> str:
        """Who is welcomed in this stage."""
        return server.newcomers[stage_of(server.step) - 1]

    # --- what travels -------------------------------------------------------------------------------------

    def send(self, server: Server, client: str) -> Payload:
        if server.step.phase == "source":
            return super().send(server, client)
        arrival = server.state.info.get("arrival", {})
        info = {"newcomer": self.newcomer(server), "known": len(server.classes) - len(arrival.get("declared", []))}
        if server.step.phase.startswith("declare-"):
            return Payload(info=info)
        if server.step.phase.startswith("discover-"):
            return Payload.of({**info, "mix": arrival["mix"]}, model=server.state.group("model"))
        if server.step.phase.startswith("judge-"):
            return Payload.of(info, model=server.state.group("model"), before=server.state.group("before"))
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
            check_judgement(reply)

    # --- the client's half --------------------------------------------------------------------------------

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        phase = client.step.phase
        if phase == "source":
            return super().local(payload, client, rng)
        if phase.startswith("declare-"):
            return self.declare(payload, client)
        if phase.startswith("discover-"):
            return self.show(payload, client, rng)
        if phase.startswith("adapt-"):
            return self.adapt(payload, client, rng)
        return self.judge(payload, client)

    def declare(self, payload: Payload, client: Client) -> Payload:
        """The newcomer's classes and how many samples it has of each; from others means to draw probes from."""
        reply = Payload(info={"samples": len(client.train)})
        if client.name == payload.info["newcomer"]:
            reply.info = {"samples": sum(client.labels.values()), "labels": dict(client.labels)}
        else:
            reply.put("moments", class_moments(client.train, len(client.classes), self.params.min_count))
        return reply

    def show(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Train from the federation's model: the newcomer on its data, a source on its own data in the same mix."""
        model = client.task.network(payload.group("model"), self.outputs(len(client.classes)), self.bias)
        samples = client.train
        if client.name != payload.info["newcomer"]:
            self.anchor(payload, client)
            mix = {client.classes.index(name): count for name, count in payload.info["mix"].items()}
            samples = resampled(samples, mix, self.params.discover_samples, rng)
        settings = self.params.model_copy(update={"epochs": self.params.discover_epochs})
        trained = train(model, samples, settings, self.objective, Steering(), rng)
        info = {"samples": len(client.train), **trained.info()}
        return Payload.of(info, model=client.task.weights(model))

    def adapt(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        """Train on; a source is held near what it had before the newcomer came (Eq. 8)."""
        model = client.task.network(payload.group("model"), self.outputs(len(client.classes)), self.bias)
        steering = self.correction.at(client, model, payload)
        if self.params.keep and client.name != payload.info["newcomer"]:
            new_rows = range(payload.info["known"], len(client.classes))
            steering = Keeping(steering, model, self.anchor(payload, client), self.params.keep, new_rows)
        trained = train(model, client.train, self.params, self.objective, steering, rng)
        reply = Payload.of(model=client.task.weights(model), **steering.up(trained.steps, self.params.lr))
        reply.info = {"samples": len(client.train), **trained.info()}
        return reply

    def anchor(self, payload: Payload, client: Client) -> dict[str, Tensor]:
        """W_n(0,0): the model that this client had when the stage began, or the first one of the stage that it got."""
        stage, outputs = stage_of(client.step), self.outputs(len(client.classes))
        kept = client.state.group("anchor") if client.state.info.get("stage") == stage else {}
        if not kept or len(kept["head.weight"]) != outputs:
            kept = payload.group("model")
            client.state.put("anchor", kept)
            client.state.info["stage"] = stage
        return kept

    def judge(self, payload: Payload, client: Client) -> Payload:
        """How many validation samples are answered rightly, before and now; of sources, those of old classes."""
        known, samples = payload.info["known"], client.validation
        if client.name != payload.info["newcomer"]:
            samples = samples.take(torch.nonzero(samples.y < known).flatten())
        right = {}
        for when, group, classes in (("before", "before", known), ("now", "model", len(client.classes))):
            model = client.task.network(payload.group(group), self.outputs(classes), self.bias, slot="judge")
            right[when] = correct(model, samples, classes)
        return Payload(info={"samples": len(samples), **right})

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
        else:
            self.take_judgement(server, replies)

    def take_declaration(self, server: Server, replies: Replies) -> None:
        """Grow the head by the classes that the newcomer declares and nobody knows."""
        newcomer, info = self.newcomer(server), server.state.info
        labels = next((reply.payload.info.get("labels") for reply in replies if reply.client == newcomer), None)
        if not labels:
            server.note(f"{newcomer} is not welcomed: it did not answer, or has no labelled samples")
            info["arrival"] = {"kind": "nobody"}
            return
        offers = (reply.payload.group("moments") for reply in replies if reply.client != newcomer)
        server.state.put("moments", merged_moments(offers))
        server.state.put("before", server.state.group("model"))
        declared = [name for name in labels if name not in server.classes]
        info["arrival"] = {
            "kind": "declared",
            "before": server.classes.to_json(),
            "declared": declared,
            "mix": {name: count for name, count in labels.items() if name in server.classes},
        }
        for name in declared:
            server.classes.add(name, newcomer, server.step.index)
        server.state.put("model", self.refitted(server, server.state.group("before"), before(server)))

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
            return
        evidence = self.evidence(server, own, replies)
        verdict = self.verdict(evidence)
        server.note(verdict.told(newcomer, evidence))
        server.finding("discovery", client=newcomer, **verdict.figures(evidence))
        if verdict.kind == "nothing":
            self.go_back(server, "nothing")
            self.admit(server)
        else:
            sizes = {reply.client: reply.samples for reply in replies}
            self.begin_with_both(server, own, sizes, verdict)

    def evidence(self, server: Server, own: Mapping[str, Tensor], replies: Replies) -> Evidence:
        """Diff^F and Diff^C of the newcomer, Diff^F of the sources, and how far the declared classes' rows moved."""
        start, probes = server.state.group("model"), self.probe_samples(server)
        base = self.features_of(server, start, probes)

        def diff_f(weights: Mapping[str, Tensor]) -> float:
            return feature_difference(self.features_of(server, weights, probes), base)

        newcomer, arrival = self.newcomer(server), server.state.info["arrival"]
        sources = {r.client: diff_f(r.payload.group("model")) for r in replies if r.client != newcomer}
        changes = row_changes(start, own)
        old = changes[: len(arrival["before"])].median().clamp_min(1e-12)
        rows = {name: float(changes[server.classes.names.index(name)] / old) for name in arrival["declared"]}
        return Evidence(diff_f(own), classifier_difference(own, start), sources, rows)

    def probe_samples(self, server: Server) -> Tensor:
        """What models are compared on: public samples, or draws from the class means that sources offered."""
        draws = Rng(server.rng.seed).torch(f"probes of stage {stage_of(server.step)}")
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
        return by_federation(evidence, p.deviations, p.least_spread, p.row_ratio)

    def begin_with_both(
        self, server: Server, own: Mapping[str, Tensor], sizes: Mapping[str, int], verdict: Verdict
    ) -> None:
        """Iteration 0: all sources still have the federation's model, the newcomer has its own (Eq. 4-7)."""
        newcomer, arrival, trained_for = self.newcomer(server), server.state.info["arrival"], server.classes
        server.classes = before(server)
        for name in verdict.classes:
            server.classes.add(name, newcomer, server.step.index)
        arrival["kind"], arrival["declared"] = verdict.kind, list(verdict.classes)
        others = sum(count for name, count in sizes.items() if name != newcomer)
        models = {SOURCES: (server.state.group("model"), others), newcomer: (own, sizes[newcomer])}
        pair = [
            Reply(name, Payload.of({"samples": samples}, model=self.refitted(server, weights, trained_for)))
            for name, (weights, samples) in models.items()
        ]
        server.state.put("model", pair[0].payload.group("model"))
        self.put_together(server, pair, {SOURCES: 0.0}, {SOURCES: 0.0})

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
        self.put_together(server, replies, diff_f, diff_c)
        self.correction.merge(server, replies)

    def put_together(
        self, server: Server, replies: Iterable[Reply], diff_f: Mapping[str, float], diff_c: Mapping[str, float]
    ) -> None:
        """The joint model from everybody's, and the weights that it was made with in the log."""
        newcomer, arrival = self.newcomer(server), server.state.info["arrival"]
        sizes = {reply.client: reply.samples for reply in replies}
        encoder = self.weights_by(diff_f, sizes, newcomer)
        if arrival["kind"] == "domain":
            classifier = self.weights_by(diff_c, sizes, newcomer)
            model = domain_model(replies, encoder, classifier)
            server.finding("weights", encoder=encoder, classifier=classifier)
        else:
            new = range(len(arrival["before"]), len(server.classes))
            model = class_model(replies, encoder, newcomer, new)
            if self.params.new_rows == "both":
                model = both_sides(model, replies, newcomer, new, server.state.group("model"))
            server.finding("weights", encoder=encoder)
        server.state.put("model", model)

    def weights_by(self, differences: Mapping[str, float], sizes: Mapping[str, int], newcomer: str) -> dict[str, float]:
        """The weight of every client, the newcomer's included; all together 1, but for the released program's."""
        sources = contributions(differences, sizes, sizes[newcomer], self.params.sources == "samples")
        if self.params.target_weight == "released":
            return {**sources, newcomer: float(len(sources))}
        return {**sources, newcomer: 1.0 - sum(sources.values())}

    def take_judgement(self, server: Server, replies: Replies) -> None:
        """Keep what was learnt, or go back if too much was forgotten for it."""
        newcomer = self.newcomer(server)
        counts = {"sources": [0, 0, 0], "newcomer": [0, 0, 0]}
        for reply in replies:
            whose = "newcomer" if reply.client == newcomer else "sources"
            seen = (reply.samples, reply.payload.info["before"], reply.payload.info["now"])
            counts[whose] = [total + more for total, more in zip(counts[whose], seen, strict=True)]
        figures = {
            whose: {"samples": samples, "before": right / max(1, samples), "now": now / max(1, samples)}
            for whose, (samples, right, now) in counts.items()
        }
        forgotten = figures["sources"]["before"] - figures["sources"]["now"]
        limit = self.params.max_forgetting
        refused = limit is not None and forgotten > limit
        server.finding("judgement", client=newcomer, forgotten=forgotten, refused=refused, **figures)
        for whose, name in (("sources", "source clients"), ("newcomer", newcomer)):
            row = figures[whose]
            server.note(f"{name}: {row['before']:.1%} right before, {row['now']:.1%} now (validation samples)")
        if refused:
            server.note(f"more than max_forgetting = {limit} is forgotten: back to before {newcomer} came")
            server.state.info["refused"] = [*server.state.info.get("refused", []), newcomer]
            self.go_back(server, "refused")
        else:
            self.admit(server)

    def admit(self, server: Server) -> None:
        """The newcomer is a member from now on."""
        info = server.state.info
        info["welcomed"] = [*info.get("welcomed", []), self.newcomer(server)]
        info["arrival"] = {"kind": "welcomed"}
        self.tidy(server)

    def go_back(self, server: Server, kind: str) -> None:
        """The federation as it was before the newcomer came, bit for bit."""
        server.classes = before(server)
        server.state.put("model", server.state.group("before"))
        server.state.info["arrival"] = {"kind": kind}
        self.tidy(server)

    def tidy(self, server: Server) -> None:
        """Let go of what only this stage needed."""
        for group in ("before", "moments"):
            server.state.drop(group)

    # --- answers and figures ------------------------------------------------------------------------------

    def members(self, server: Server) -> Sequence[str]:
        """A newcomer that was sent away has no say in the threshold."""
        return [name for name in server.clients if name not in server.state.info.get("refused", [])]

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
        rule: Literal["federation", "fixed"] = changed("rule", "fixed")
        sources: Literal["samples", "equal"] = changed("sources", "equal")
        new_rows: Literal["both", "newcomer"] = changed("new_rows", "newcomer")


@METHODS.add("gains-released")
class GainsReleased(GainsPaper):
    """Gains as its authors' program computes it: the newcomer weighs N-1, so that weights add up to more than 1."""

    class Params(GainsPaper.Params):
        new_rows: Literal["both", "newcomer"] = Field(
            "both", description="new classes' rows are the newcomer's (Eq. 7), or also learn from sources what is none"
        )
        target_weight: Literal["share", "released"] = with_default(Gains.Params, "target_weight", "released")


def stage_of(step: Step) -> int:
    """The stage of a phase such as adapt-2, counted from 1."""
    return int(step.phase.rpartition("-")[2])


def before(server: Server) -> ClassRegistry:
    """The classes before this stage's newcomer came."""
    return ClassRegistry.from_json(server.state.info["arrival"]["before"])


@torch.inference_mode()
def correct(model: Network, samples: Samples, classes: int) -> int:
    """How many samples the network answers rightly with one of its first `classes` outputs."""
    model.eval()
    device = next(model.parameters()).device
    answers = [model(x.to(device))[:, :classes].argmax(1).cpu() == y for x, y in samples.batches(JUDGED_AT_ONCE)]
    return int(sum(right.sum() for right in answers))


def check_declaration(server: Server, reply: Payload) -> None:
    """Refuse names that cannot be classes' names, and counts or means that do not fit."""
    moments = reply.group("moments")
    if moments:
        check_like(moments, moments_spec(len(server.classes), server.task.input_shape), "moments")
        check_moments(moments, reply.info["samples"])
    labels = reply.info.get("labels", {})
    if not isinstance(labels, dict) or len(labels) > MOST_CLASSES:
        raise BadReply(f"info 'labels' must be a table of at most {MOST_CLASSES} classes")
    for name, count in labels.items():
        if not name.strip() or not name.isprintable() or len(name) > MOST_CHARACTERS:
            raise BadReply(f"class name {name[:40]!r} must be one line of at most {MOST_CHARACTERS} characters")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise BadReply(f"class {name!r} has {str(count)[:40]} samples, expected a whole number from 1 on")
    if labels and sum(labels.values()) != reply.info["samples"]:
        raise BadReply("the classes' samples do not add up to info 'samples'")
    try:
        check_names("this client", labels, server.classes.names)
    except UserError as problem:
        raise BadReply(str(problem)) from problem


def check_judgement(reply: Payload) -> None:
    """Refuse counts of right answers that cannot be."""
    for key in ("before", "now"):
        count = reply.info.get(key)
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= reply.info["samples"]:
            raise BadReply(f"info {key!r} is {str(count)[:40]}, expected a whole number of at most the samples")
