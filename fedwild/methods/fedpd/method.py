"""FedPD. Yang, Zhu, Liu, Yuan: FedPD: federated open set recognition with parameter disentanglement. ICCV 2023.

Each client trains an open-set classifier and determines which of its weights matter to the closed-set loss and which to
the open-set loss (LPD, section 4.1). The server aligns the neurons of the clients' models, part by part, and averages
them (GDCA, section 4.2). The preset `fedpd-paper` is the published method; the defaults of `fedpd` work better in our
experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from fedwild.aggregation import Mean
from fedwild.contract import Answering, Client, Exhibit, Outcome, Payload, Phase, Predictor, Record, Server
from fedwild.core.errors import UserError
from fedwild.methods.fedavg import FedAvg
from fedwild.methods.fedpd.calibrate import Calibrate
from fedwild.methods.fedpd.exhibits import mask_exhibits
from fedwild.methods.fedpd.parts import Disentangled, select_means
from fedwild.methods.fedpd.solvers import Solver, sinkhorn_solver, solve_assignment
from fedwild.methods.fedpd.subnetworks import weight_names
from fedwild.methods.fedpd.train import Train
from fedwild.methods.own_start import START, Start, check_start
from fedwild.methods.registry import METHODS
from fedwild.models import LayerGraph, Network
from fedwild.models.norms import norm_keys
from fedwild.openset import ScoredModel


@METHODS.add("fedpd")
class FedPD(FedAvg):
    """Aligns open-set models neuron by neuron before averaging; clients keep their own batch-norm (FedPD)."""

    class Params(FedAvg.Params):
        rounds: int = Field(100, ge=1, description="communication rounds")
        lr: float = Field(0.01, gt=0, description="learning rate")
        weight_decay: float = Field(5e-4, ge=0, description="L2 penalty inside the optimiser")
        stages: Literal["one", "two"] = Field(
            "one",
            description="one: a loss in which open_weight weighs the open-set loss; two: the closed-set loss first, "
            "then both losses at lr times open_weight (the paper); a single round has one stage",
        )
        closed_share: float = Field(0.7, gt=0, lt=1, description="share of the rounds in the first of two stages")
        start: Start = Field("shared", description=START)
        importance: Literal["grad*weight", "grad", "none"] = Field(
            "grad*weight", description="how much a weight matters to a loss (Eq. 4 and 5); none: no subnetworks"
        )
        ratio: float = Field(0.5, gt=0, lt=1, description="share of a layer's weights that a subnetwork keeps")
        maps: Literal["one", "three", "two"] = Field(
            "one",
            description="how neurons are matched: once for all parts, once for each of three parts (the paper), or "
            "once for each of the two subnetworks (without divide)",
        )
        align: Literal["exact", "none"] | Annotated[float, Field(gt=0)] = Field(
            "exact", description="exact: the best permutation; a number: Sinkhorn with this entropy; none: no alignment"
        )
        sweeps: int = Field(5, ge=0, description="passes over all layers after the first; the paper uses none")
        target: int | Literal["mean"] = Field(
            "mean", description="align to the mean of the models aligned so far, or to the n-th client by name"
        )
        mean: Literal["auto", "part", "all"] = Field(
            "auto",
            description="part: average each weight over the clients for which it is in the same part, so that every "
            "client has its own model; all: over all clients; auto: part if label distributions are similar",
        )
        rest: Literal["kept", "zero"] = Field(
            "kept", description="weights in neither subnetwork: kept, or zero as Eq. 16 implies"
        )
        average: Literal["equal", "samples"] = Field("equal", description="the clients' weights in the mean")
        norms: Literal["auto", "local", "merged"] = Field(
            "auto",
            description="local: every client has its own batch-norm; merged: all share one; auto: local if label "
            "distributions are similar",
        )
        calibrate: bool = Field(True, description="measure batch-norm statistics again in a last round")

    parts = {**FedAvg.parts, "objective": {"name": "proser", "open_weight": 0.01}, "score": {"name": "proser"}}
    params: Params

    def check(self, network: Network | None, start_from: str | None) -> None:
        p = self.params
        check_start(p.start, start_from)
        if p.maps != "one" and p.target == "mean":
            raise UserError(
                f"method.target = 'mean' is not allowed with method.maps = {p.maps!r}: the mean of models has no "
                "parts. Use the number of a client, such as 0."
            )
        if p.mean == "part" and not self.parts_persist:
            raise UserError(
                "method.mean = 'part' is not allowed with method.importance = "
                f"{p.importance!r}, method.maps = {p.maps!r} and method.align = {p.align!r}: it needs subnetworks and "
                "one permutation for all parts. Use method.mean = 'all'."
            )
        if p.mean != "all" and not isinstance(self.aggregation, Mean):
            raise UserError(
                f"aggregation.name = {self.aggregation.name!r} is not allowed with method.mean = {p.mean!r}, which "
                "averages each weight over some of the clients. Use method.mean = 'all'."
            )
        self.solver()
        if p.importance != "none" and not self.objective.has_open_loss:
            raise UserError(
                f"objective.name = {self.objective.name!r} is not allowed with method.importance = "
                f"{p.importance!r}: it has no open-set loss. Use proser or outlier-aware."
            )
        self.check_stages()
        if network is not None:
            frozen = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
            if frozen and p.rest == "zero" and p.importance != "none":
                raise UserError(
                    f"method.rest = 'zero' is not allowed with a network that freezes {frozen[0]!r}: it would set part "
                    "of the frozen weights to zero. Use method.rest = 'kept'."
                )
            network.graph()

    def check_stages(self) -> None:
        objective = self.objective
        if self.params.stages == "two" and not (objective.has_open_loss and objective.open_weight):
            raise UserError(
                f"method.stages = 'two' is not allowed with objective.name = {objective.name!r} and an open weight of "
                f"{objective.open_weight:g}: the second stage needs an open-set loss. Use method.stages = 'one'."
            )

    def phases(self) -> Sequence[Phase]:
        last = [Calibrate("calibrate", 1, self)] if self.params.calibrate else []
        return [Train("train", self.params.rounds, self), *last]

    def solver(self) -> Solver:
        """Return what finds the map of a space."""
        align = self.params.align
        return solve_assignment if isinstance(align, str) else sinkhorn_solver(align)

    def graph(self, server: Server) -> LayerGraph:
        return server.task.graph(self.outputs(len(server.classes)))

    @property
    def parts_persist(self) -> bool:
        """Whether each merged weight still belongs to one part for every client."""
        p = self.params
        return p.importance != "none" and p.maps == "one" and isinstance(p.align, str)

    def has_own_weights(self, server: Server) -> bool:
        """Whether every client has its own weights."""
        return self.parts_persist and is_chosen(self.params.mean, "part", server)

    def has_own_norms(self, server: Server) -> bool:
        """Whether every client has its own batch-norm."""
        return is_chosen(self.params.norms, "local", server) and bool(norm_keys(server.state.group("model")))

    def drop_own_weights(self, server: Server) -> None:
        """Drop the clients' own weights and norms where all clients get the same."""
        if not self.has_own_weights(server):
            server.state.drop("masks")
            server.state.drop("parts")
        if not self.has_own_norms(server):
            server.state.drop("norms")

    def request(self, server: Server, client: str) -> Payload:
        """Return what a client receives in either phase."""
        return Payload.of(model=self.client_weights(server, client), **self.correction.to_clients(server))

    def client_weights(self, server: Server, client: str) -> dict[str, Tensor]:
        """Return the merged model with the client's own norms and, for each weight, the mean of its part here."""
        weights = {**server.state.group("model"), **server.state.group(f"norms/{client}")}
        masks = server.state.subgroups(f"masks/{client}")
        if not masks:
            return weights
        model = Disentangled.from_payload(Payload.of(model=weights, **masks))
        return {**weights, **select_means(server.state.subgroups("parts"), model)}

    def answers(self, server: Server) -> Answering:
        def predictor(client: Client | None) -> Predictor:
            weights = server.state.group("model") if client is None else self.client_weights(server, client.name)
            model = server.task.network(weights, self.outputs(len(server.classes)), slot="predictor")
            return ScoredModel(model, len(server.classes), self.score)

        personal = self.has_own_weights(server) or self.has_own_norms(server)
        return Answering(predictor, server.clients, personal, self.params.threshold)

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Return the mean share of neurons that each kind of map moved in the last round."""
        moves = list(server.state.info.get("moved", {}).values())
        parts = sorted({part for move in moves for part in move})
        return {f"moved_{part}": fmean(move[part] for move in moves if part in move) for part in parts}

    def exhibits(self, record: Record) -> Sequence[Exhibit]:
        server = record.server
        rounds = server.step.round + 1 if server.step.phase == "train" else self.params.rounds
        return mask_exhibits(server, weight_names(self.graph(server)), self.params.ratio, rounds)


def is_chosen(setting: str, value: str, server: Server) -> bool:
    """Whether a setting has this value, given or by `auto` because the clients' label distributions are similar."""
    return setting == value or (setting == "auto" and bool(server.state.info.get("alike")))
