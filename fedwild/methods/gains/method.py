"""Gains. Zhong, Jiang, Bao, Wang, Wang, Wang, Deng, Ren: Gains: fine-grained federated domain adaptation in open set.
NeurIPS 2025.

A federation is trained, then a newcomer arrives. The newcomer trains the federation's model on its own data. From the
change of the model, the server decides whether it brings nothing new, a new domain or new classes. If it brings
something, all clients continue training: source clients are held near the model that they had, and the server weights
them by their similarity to the newcomer. The phases, for every newcomer k in turn:

    source       rounds of FedAvg among the members
    declare-k    all clients describe where their classes lie; the newcomer names its own, and the head grows
    discover-k   the newcomer trains; the server decides what it brings (Eq. 1)
    adapt-k      rounds of contribution-driven aggregation (Eq. 2-7) with anti-forgetting (Eq. 8)
    judge-k      validation accuracy before and after; the federation is restored if it forgot too much
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from pydantic import Field

from fedwild.contract import (
    Answering,
    Client,
    Draw,
    Exhibit,
    Payload,
    Phase,
    Record,
    Rng,
    Server,
    Traits,
    Welcomes,
)
from fedwild.discovery.truth import covered_truth
from fedwild.methods.fedavg import AveragingRounds, FedAvg
from fedwild.methods.gains.adapt import Adapt
from fedwild.methods.gains.anchors import keep_own
from fedwild.methods.gains.declare import Declare
from fedwild.methods.gains.discover import Discover
from fedwild.methods.gains.exhibits import newcomer_exhibits
from fedwild.methods.gains.judge import Judge
from fedwild.methods.gains.stage import members
from fedwild.methods.registry import METHODS
from fedwild.models import Network
from fedwild.openset import ScoredModel

NEVER = 10**9
"""A round that no run reaches."""


class Source(AveragingRounds):
    """Rounds of FedAvg among the members, before the first newcomer arrives."""

    method: Gains

    def who(self, server: Server, present: Sequence[str], draw: Draw) -> Sequence[str]:
        return draw(members(server, present))

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = super().local(payload, client, rng)
        if self.method.keeps_own:
            keep_own(client, reply.group("model"), stage=0)
        return reply


@METHODS.add("gains")
class Gains(FedAvg, Welcomes):
    """Welcomes newcomers one at a time: finds out what each brings, and learns it without forgetting."""

    class Params(FedAvg.Params):
        rounds: int = Field(20, ge=0, description="rounds before the first newcomer; 0 with federation.start_from")
        stages: int = Field(1, ge=0, le=1000, description="number of newcomers to welcome, one after the other")
        adapt_rounds: int = Field(10, ge=0, description="rounds of adaptation to each newcomer")
        max_classes: int = Field(100, ge=1, description="a newcomer may not declare more classes, known or new")
        discover_epochs: int = Field(3, ge=1, description="epochs that the newcomer trains before the decision")
        rule: Literal["federation", "fixed"] = Field(
            "federation", description="limits measured at the source clients, or the fixed limits t_f and t_c on Diff"
        )
        yardstick: Literal["within", "between"] = Field(
            "within", description="compare the newcomer's shift with shifts within source clients, or between them"
        )
        least_shift: float = Field(0.1, ge=0, description="a domain with a smaller shift is never new")
        times: float = Field(
            2.0, ge=0, description="a domain is new if its shift is this many times the source clients' 0.9 quantile"
        )
        decide: Literal["once", "rounds"] = Field(
            "once", description="decide in discovery, or in every round from Diff of the last source client by name"
        )
        t_f: float = Field(0.154, ge=0, description="T_F of fixed limits: a larger Diff^F means something new")
        t_c: float = Field(0.25, ge=0, description="T_C of fixed limits: a larger Diff^C means new classes")
        inclusive: bool = Field(False, description="a Diff equal to t_f or t_c counts as larger (>=)")
        difference: Literal["mean", "norm"] = Field(
            "mean", description="Diff^F: mean absolute difference (Eq. 1), or the norm, which grows with the probes"
        )
        probes: int = Field(256, ge=1, description="number of samples on which models are compared")
        min_count: int = Field(
            10, ge=1, description="source clients send no means of classes with fewer samples (of inputs: at least 10)"
        )
        synonym: float = Field(0.05, ge=0, description="report a declared class with a smaller shift from a known one")
        sources: Literal["samples", "equal"] = Field(
            "samples", description="contributions are samples / (1 + Diff), or 1 / (1 + Diff) for all sizes"
        )
        scale: Literal["none", "mean"] = Field(
            "none", description="contributions use Diff, or Diff divided by its mean over the source clients"
        )
        new_rows: Literal["both", "newcomer"] = Field(
            "both", description="rows of new classes: mean of newcomer and source clients, or the newcomer's (Eq. 7)"
        )
        target_weight: Literal["share", "released"] = Field(
            "share", description="the newcomer's weight: its share of samples, or N-1 as in the released program"
        )
        extra_epochs: int = Field(0, ge=0, description="epochs of the newcomer beyond `epochs` in adaptation")
        keep: float = Field(0.001, ge=0, description="lambda: strength of anti-forgetting at source clients (Eq. 8)")
        anchor: Literal["received", "own"] = Field(
            "received", description="W_n(0,0): the model received at the start of a stage, or the client's own last one"
        )
        tail: Literal["mean", "last"] = Field(
            "mean", description="a stage ends with the mean model of the second half of its rounds, or with the last"
        )
        calibrate: bool = Field(True, description="lower the biases of new rows to what suits validation samples best")
        max_forgetting: float | None = Field(
            None, ge=0, le=1, description="restore the federation if source validation accuracy falls by more"
        )

    traits = Traits(starts_from=True, sends_embeddings=True)
    params: Params

    def phases(self) -> Sequence[Phase]:
        phases: list[Phase] = [Source("source", self.params.rounds, self)]
        for k in range(1, self.params.stages + 1):
            phases += [Declare(f"declare-{k}", 1, self, k), Discover(f"discover-{k}", 1, self, k)]
            phases += [Adapt(f"adapt-{k}", self.params.adapt_rounds, self, k), Judge(f"judge-{k}", 1, self, k)]
        return phases

    @property
    def keeps_own(self) -> bool:
        """Whether clients keep the model that they have trained, as the anchor of the next stage."""
        return self.params.anchor == "own" and self.params.keep > 0

    def arrivals(self, newcomers: Sequence[str]) -> dict[str, int | str]:
        """Return the stage of each newcomer, in their order. Newcomers without a stage never arrive."""
        stages = self.params.stages
        return {n: f"declare-{k}" if k <= stages else NEVER for k, n in enumerate(newcomers, start=1)}

    def welcomed(self, server: Server) -> Sequence[str]:
        return list(server.state.info.get("welcomed", []))

    @classmethod
    def welcome_settings(cls, rounds: int | None, max_forgetting: float | None) -> dict[str, Any]:
        given = {"adapt_rounds": rounds, "max_forgetting": max_forgetting}
        return {"rounds": 0, "stages": 1, **{key: value for key, value in given.items() if value is not None}}

    def answers(self, server: Server) -> Answering:
        """Return the common model. Newcomers that failed or were refused do not influence the threshold."""
        outside = server.state.info.get("outside", [])
        return Answering(
            lambda _: ScoredModel(self.model(server), len(server.classes), self.score),
            [name for name in server.clients if name not in outside],
            threshold=self.params.threshold,
            truth=partial(covered_truth, server),
        )

    def model(self, server: Server) -> Network:
        """Return the mean model of the stage's rounds if there is one by now, else the last model."""
        group, outputs = "mean" if "mean" in server.state else "model", self.outputs(len(server.classes))
        return server.task.network(server.state.group(group), outputs, self.bias, slot="predictor")

    def exhibits(self, record: Record) -> Sequence[Exhibit]:
        return newcomer_exhibits(record)
