"""FedOSS. Zhu, Liao, Liu, Yuan: FedOSS: federated open set recognition via inter-client discrepancy and
collaboration. IEEE Transactions on Medical Imaging 43(1), 2024.

The network has one output more than there are classes: unknown. Beside it every client trains a personal head, which is
never averaged. After pre-training, clients make virtual unknown samples in feature space to learn from:

- DUSS: samples about which the clients' heads disagree are pushed over their decision boundary;
- FOSS: the server merges what clients tell of these into one Gaussian per class, and clients draw more from its rim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedwild.aggregation import weighted_mean
from fedwild.corrections import Correction
from fedwild.errors import BadReply, UserError, unknown_name
from fedwild.hyper import with_default
from fedwild.initial import HEAD, initial_weights
from fedwild.methods.base import METHODS
from fedwild.models import Network
from fedwild.models.branches import Bank, BranchKind, cut_shape, make_branch
from fedwild.objectives import CrossEntropy
from fedwild.objectives.balanced import log_shares
from fedwild.objectives.proser import first_dense
from fedwild.openset import Score
from fedwild.openset.adversarial import held_still
from fedwild.openset.boundary import agreement, between, informed_agreement, shaken, small_margin
from fedwild.openset.gaussians import (
    Gaussian,
    Moments,
    any_of,
    from_tensors,
    merge_classes,
    to_tensors,
    travel_shape,
    unlikelier_than,
    unlikely,
)
from fedwild.openset.grids import Grid
from fedwild.openset.inversion import FARTHEST, Away, Unit, invert
from fedwild.payload import Payload, check_like
from fedwild.predictors import ScoredModel
from fedwild.protocol import Client, Method, Outcome, Phase, Predictor, Replies, Server, Step
from fedwild.rng import Rng
from fedwild.synthesis import PersonalHead, Recognise, Sample, Synthesis, Tally, mean_info
from fedwild.task import Task, weights_of
from fedwild.training import LocalTraining, train

PRETRAIN, FINETUNE = "pretrain", "finetune"
AUTO = "auto"
ENOUGH = 10
"""A class is drawn from once more than so many synthesised samples stand behind its Gaussian."""
FIGURES = ("boundary", "displacement")


class FedOSSParams(LocalTraining):
    """How clients train and synthesise."""

    batch_size: int = Field(32, ge=1, description="samples per step; the last partial batch is kept")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="of pre-training, fresh every round")
    lr: float = Field(0.02, gt=0, description="learning rate of pre-training")
    rounds: int = Field(100, ge=0, description="rounds of pre-training")
    halve_after: int = Field(25, ge=1, description="pre-training rounds after which the learning rate is halved")
    finetune_rounds: int = Field(30, ge=0, description="rounds with virtual unknown samples")
    finetune_optimizer: Literal["sgd", "adam"] = Field("adam", description="of these, fresh every round")
    finetune_lr: float = Field(1e-4, gt=0, description="learning rate of these")
    cut: str = Field(AUTO, description="stage after which personal heads and synthesis begin; auto: see the page")
    branch: BranchKind = Field("full", description="light: linear personal heads; full: copies of all after the cut")
    prior: bool = Field(True, description="losses of known samples take the client's label shares into account")
    bank: int = Field(16, ge=2, description="at most so many personal heads are asked")
    boundary: Literal["agreement", "informed", "perturbation", "margin", "all"] = Field(
        "informed", description="which samples are pushed; agreement: Eq. 1 as printed"
    )
    low: float = Field(0.0, ge=0, lt=1, description="agreement, informed: boundary samples have a share above this")
    high: float = Field(1.0, gt=0, le=1, description="and below this")
    width: float = Field(0.5, gt=0, description="margin: largest margin; perturbation: its strength, in lengths")
    steps: int = Field(1, ge=0, description="T, how often boundary samples are pushed")
    step_size: float = Field(0.25, gt=0, description="lambda, how far")
    step_unit: Unit = Field("length", description="of step_size: the sample's own length, or its raw gradient")
    away: Away = Field("known", description="boundary samples are pushed away from their own class, or from all known")
    masked: bool = Field(True, description="the sample's own class does not compete with unknown (Eq. 13)")
    duss: float = Field(0.1, ge=0, description="weight of pushed samples")
    foss: float = Field(0.1, ge=0, description="weight of drawn samples; 0: no statistics are sent")
    aggregate: bool = Field(True, description="Gaussians of all clients; false: each client's own")
    select: Literal["lowest", "density", "none"] = Field(
        "lowest", description="lowest: the least likely draws; density: those below log_density; none: any"
    )
    draws: int = Field(100, ge=1, description="draws per class and batch")
    keep: int = Field(6, ge=1, description="of which so many are kept")
    log_density: float | None = Field(None, description="select = density needs it: log of the paper's epsilon")
    refresh: int = Field(1, ge=1, description="Gaussians are made anew in every so many rounds")
    dims: int = Field(2048, ge=1, description="activations with more numbers are averaged over space for Gaussians")
    min_count: int = Field(5, ge=1, description="a client tells nothing of a class with fewer synthesised samples")
    decision: Literal["argmax", "calibrated"] = Field(
        "calibrated", description="argmax over K + 1 outputs, or a threshold that accepts most validation samples"
    )


def changed(name: str, default: Any) -> Any:
    """A setting of `FedOSSParams` with another default."""
    return with_default(FedOSSParams, name, default)


@dataclass(frozen=True)
class Layout:
    """Where a network is cut, and what follows from it."""

    cut: str
    grid: Grid
    head: dict[str, Tensor]
    """Names, shapes and types of a personal head's tensors, without their values."""


@METHODS.add("fedoss")
class FedOSS(Method):
    """Open set synthesis: virtual unknown samples from client discrepancy, shared as Gaussians."""

    Params = FedOSSParams
    sends_embeddings = True
    composes = ("correction", "score")
    parts = {"score": {"name": "proser", "temperature": 1.0}}
    starts_from = True
    digits = {"method": {"rounds": 20, "lr": 0.05, "finetune_rounds": 5, "epochs": 3, "batch_size": 16}}
    correction: Correction
    score: Score
    params: FedOSSParams

    def __init__(self, params: FedOSSParams, **parts: Any) -> None:
        super().__init__(params, **parts)
        self._layouts: dict[Any, Layout] = {}

    @classmethod
    def scores_unknown_output(cls, parts: Mapping[str, Any]) -> bool:
        return True

    def phases(self) -> Sequence[Phase]:
        return [Phase(PRETRAIN, self.params.rounds), Phase(FINETUNE, self.params.finetune_rounds)]

    def check_network(self, network: Network) -> None:
        self.cut(network)
        if self.params.decision == "argmax" and self.score.name != "proser":
            raise UserError(
                f"score.name = {self.score.name!r} is not allowed with method.decision = 'argmax', "
                "which compares the unknown output with the others: take score.name = 'proser'."
            )
        p = self.params
        if p.low >= p.high:
            raise UserError(
                f"method.low = {p.low} must be below method.high = {p.high}: no sample could be at the boundary."
            )
        if p.select == "density" and p.log_density is None:
            raise UserError(
                "method.select = 'density' needs method.log_density, below which a draw's log density must lie; "
                "it depends on network and data, -1000 for example."
            )
        if p.keep > p.draws:
            raise UserError(f"method.keep = {p.keep} is not allowed: it must be at most method.draws = {p.draws}.")
        if p.rounds + p.finetune_rounds == 0:
            raise UserError("method.rounds = 0 and method.finetune_rounds = 0: one of them must be at least 1.")

    def cut(self, network: Network) -> str:
        """The stage after which branches begin: by default the last before dense layers, else the last but one."""
        if self.params.cut != AUTO:
            if self.params.cut not in network.cuts:
                raise unknown_name("method.cut", self.params.cut, (AUTO, *network.cuts))
            return self.params.cut
        dense = first_dense(network)
        end = len(network.cuts) - 1 if dense is None else network.cuts.index(dense)
        return network.cuts[max(0, end - 1)]

    def layout(self, task: Task, classes: int) -> Layout:
        """Found out once for a network."""
        key = (task.model, repr(task.model_params), task.input_shape, classes)
        if key not in self._layouts:
            network = task.build(classes + 1, Rng(0))
            cut = self.cut(network)
            head = make_branch(self.params.branch, network, cut, classes).state_dict()
            grid = Grid.within(cut_shape(network, cut), self.params.dims)
            self._layouts[key] = Layout(cut, grid, {name: tensor.to("meta") for name, tensor in head.items()})
        return self._layouts[key]

    # --- at the client ------------------------------------------------------------------------------------

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        classes = len(client.classes)
        model = client.task.network(payload.group("model"), classes + 1)
        layout = self.layout(client.task, classes)
        head = self.own_head(model, layout, client, rng)
        settings = self.settings(client.step.phase, client.step.round)
        shares = log_shares(client.train.y, classes) if self.params.prior else torch.zeros(classes)
        device = next(model.parameters()).device
        descent = PersonalHead(layout.cut, head, settings.optimiser(head), shares.to(device))
        tally = None
        if client.step.phase == FINETUNE:
            tally = Tally(layout.grid)
            descent = self.synthesis(descent, tally, payload, client.state, model, rng)
        steering = self.correction.at(client, model, payload)
        trained = train(model, client.train, settings, CrossEntropy(CrossEntropy.Params()), steering, rng, descent)
        client.state.put("head", weights_of(head))
        reply = Payload.of(
            {"samples": len(client.train), "held": client.train.classes, **trained.info()},
            model=client.task.weights(model),
            head=client.state.group("head"),
            **steering.up(trained.steps, settings.lr),
        )
        if tally is not None:
            self.tell(tally, client, reply)
        for group in ("model", "head", "statistics"):
            reply.info[f"{group}_bytes"] = sum(tensor.nbytes for tensor in reply.group(group).values())
        return reply

    def settings(self, phase: str, round_: int) -> LocalTraining:
        """The training settings of a round."""
        p = self.params
        if phase == PRETRAIN:
            return p.model_copy(update={"lr": p.lr * 0.5 ** (round_ // p.halve_after)})
        return p.model_copy(update={"optimizer": p.finetune_optimizer, "lr": p.finetune_lr})

    def own_head(self, model: Network, layout: Layout, client: Client, rng: Rng) -> nn.Module:
        """The client's personal head, where its last round left it; in its first round a new one."""
        with rng.seeded("head"):
            head = make_branch(self.params.branch, model, layout.cut, len(client.classes))
        head.to(next(model.parameters()).device)
        kept = client.state.group("head")
        # A federation that has learnt new classes since asks for a new head.
        if kept and kept["head.weight"].shape == layout.head["head.weight"].shape:
            head.load_state_dict(kept)
        return head.train()

    def synthesis(
        self, personal: PersonalHead, tally: Tally, payload: Payload, own: Payload, model: Network, rng: Rng
    ) -> Synthesis:
        """Training with virtual unknown samples; `own` has the client's own Gaussians."""
        p = self.params
        return Synthesis(
            personal,
            recognise=self.recognise(personal, payload),
            push=partial(invert, cut=personal.cut, steps=p.steps, size=p.step_size, unit=p.step_unit, away=p.away),
            sample=self.sampler(payload if p.aggregate else own, tally.grid, model, rng),
            weights=(p.duss, p.foss),
            masked=p.masked,
            tally=tally,
        )

    def recognise(self, personal: PersonalHead, payload: Payload) -> Recognise:
        """The rule that finds boundary samples."""
        p, cut, known = self.params, personal.cut, len(personal.shares)
        # Empty for rules that ask nobody.
        members = payload.members("bank")
        bank = Bank(personal.head, list(members.values()))
        held = torch.zeros(len(members), known, dtype=torch.bool)
        for row, name in enumerate(members):
            held[row, payload.info["held"][name]] = True

        def by_heads(model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
            if not bank.branches:
                return torch.zeros_like(y, dtype=torch.bool)
            return self.between(self.agreed(bank.logits(h), y, held.to(h.device)))

        def by_margin(model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
            with held_still(model), torch.no_grad():
                return small_margin(model.after(h, cut)[:, :known], y, p.width)

        def by_perturbation(model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
            with held_still(model), torch.no_grad():
                before, after = (model.after(q, cut)[:, :known].argmax(1) for q in (h, shaken(h, p.width, draws)))
            return before != after

        def everything(model: Network, h: Tensor, y: Tensor, draws: torch.Generator) -> Tensor:
            return torch.ones_like(y, dtype=torch.bool)

        rules: dict[str, Recognise] = {"margin": by_margin, "perturbation": by_perturbation, "all": everything}
        return rules.get(p.boundary, by_heads)

    def agreed(self, answers: Tensor, y: Tensor, held: Tensor) -> Tensor:
        """s (n,): the share of heads that are right (Eq. 1), all of them or those whose clients can know."""
        return agreement(answers, y) if self.params.boundary == "agreement" else informed_agreement(answers, y, held)

    def between(self, share: Tensor) -> Tensor:
        """Which shares (n,) are a boundary sample's."""
        return between(share, self.params.low, self.params.high)

    def sampler(self, source: Payload, grid: Grid, model: Network, rng: Rng) -> Sample | None:
        """Draws from the rim of each class's Gaussian (Eq. 5); None while there is no Gaussian."""
        p = self.params
        gaussians = {int(k): Gaussian(**tensors) for k, tensors in source.members("gaussians").items()}
        if not gaussians:
            return None
        numbers, device = rng.numpy("open space"), next(model.parameters()).device

        def sample() -> tuple[Tensor, Tensor]:
            found, near = [], []
            for k, gaussian in gaussians.items():
                if p.select == "density" and p.log_density is not None:
                    z = unlikelier_than(gaussian, p.log_density, p.draws, p.keep, numbers)
                else:
                    z = (unlikely if p.select == "lowest" else any_of)(grid.dims, p.draws, p.keep, numbers)
                found.append(gaussian.at(z))
                near.append(torch.full((len(z),), k))
            return grid.activations(torch.cat(found)).to(device), torch.cat(near).to(device)

        return sample

    def tell(self, tally: Tally, client: Client, reply: Payload) -> None:
        """Add what was synthesised to the reply: figures, and moments if they are asked for."""
        reply.info.update(tally.info())
        p = self.params
        if not p.aggregate and p.foss and client.step.round % p.refresh == 0:
            keep_gaussians(client.state, tally.moments(p.min_count))
        if not self.tells_moments(client.step):
            return
        found = tally.moments(p.min_count)
        reply.info["counts"] = {str(k): part.count for k, part in found.items()}
        for k, part in found.items():
            reply.put(f"statistics/{k}", to_tensors(part))

    # --- at the server ------------------------------------------------------------------------------------

    def start(self, server: Server) -> None:
        weights = initial_weights(server, len(server.classes) + 1)
        begun = server.initial
        # A model that has an unknown output already keeps it.
        trained = begun is not None and len(begun.weights["head.weight"]) > len(begun.classes)
        server.state.info["unknown_trained"] = trained
        server.state.put("model", weights if trained else with_neutral_unknown(weights))

    def send(self, server: Server, client: str) -> Payload:
        payload = Payload.of(model=server.state.group("model"), **self.correction.down(server))
        if server.step.phase == FINETUNE:
            payload.info["held"] = server.state.info.get("held", {})
            payload.add("bank", server.state.group("bank"))
            payload.add("gaussians", server.state.group("gaussians"))
        return payload

    @property
    def asks_heads(self) -> bool:
        """Whether the rule for boundary samples needs the bank."""
        return self.params.boundary in ("agreement", "informed")

    def tells_moments(self, step: Step) -> bool:
        """Whether clients send statistics in this round."""
        p = self.params
        return step.phase == FINETUNE and p.foss > 0 and p.aggregate and step.round % p.refresh == 0

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        classes = len(server.classes)
        head = self.layout(server.task, classes).head
        return {"model": server.task.spec(classes + 1), "head": head, **self.correction.expects(server)}

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        held = reply.info.get("held")
        classes = range(len(server.classes))
        if (
            not isinstance(held, list)
            or len(held) > len(classes)
            or any(type(k) is not int or k not in classes for k in held)
            or held != sorted(set(held))
        ):
            raise BadReply("info 'held' must list the classes that the client has, each once and in order")
        if server.step.phase == FINETUNE:
            self.check_synthesis(server, reply)

    def check_synthesis(self, server: Server, reply: Payload) -> None:
        """Shares are shares, and moments have the shapes that belong to their counts."""
        for key, most in (("boundary", 1.0), ("displacement", FARTHEST)):
            value = reply.info.get(key)
            if not isinstance(value, float) or not 0 <= value <= most:
                raise BadReply(f"info {key!r} is {str(value)[:40]}, expected a number from 0 to {most:g}")
        counts = reply.info.get("counts", {})
        told = reply.members("statistics")
        if not isinstance(counts, dict) or counts.keys() != told.keys():
            raise BadReply("info 'counts' must have a count for every class in 'statistics'")
        if told and not self.tells_moments(server.step):
            raise BadReply("statistics in a round that asks for none")
        dims = self.layout(server.task, len(server.classes)).grid.dims
        for k, tensors in told.items():
            count = counts[k]
            if k not in {str(number) for number in range(len(server.classes))}:
                raise BadReply(f"statistics of {k[:40]!r}, which is no class")
            if type(count) is not int or not 1 <= count <= reply.info["samples"]:
                raise BadReply(f"the count of class {k} is {str(count)[:40]}, expected 1 to the number of samples")
            spread = torch.empty(travel_shape(count, dims), device="meta")
            check_like(
                tensors, {"mean": torch.empty(dims, device="meta"), "spread": spread}, f"statistics of class {k}"
            )

    def merge(self, server: Server, replies: Replies) -> None:
        mean = weighted_mean(replies, "model")
        if mean is None:
            server.note("no client had a training sample: the model stays as it is")
        else:
            untrained = server.step.phase == PRETRAIN and not server.state.info["unknown_trained"]
            server.state.put("model", with_neutral_unknown(mean) if untrained else mean)
        self.correction.merge(server, replies)
        if self.asks_heads:
            self.merge_bank(server, replies)
        if server.step.phase == FINETUNE:
            self.merge_synthesis(server, replies)

    def merge_bank(self, server: Server, replies: Replies) -> None:
        """The heads to be asked in the next round: the clients' last ones, at most as many as the bank may hold."""
        if self.is_last(server.step):
            server.state.drop("bank")
            server.state.info.pop("held", None)
            return
        before: dict[str, list[int]] = server.state.info.get("held", {})
        now = {reply.client: reply.payload.info["held"] for reply in replies if reply.samples}
        names = sorted({**before, **now})
        if len(names) > self.params.bank:
            chosen = server.rng.numpy("bank").choice(len(names), self.params.bank, replace=False)
            names = [names[i] for i in sorted(chosen)]
        heads = {name: server.state.group(f"bank/{name}") for name in names if name not in now}
        heads |= {reply.client: reply.payload.group("head") for reply in replies if reply.client in names}
        server.state.info["held"] = {name: {**before, **now}[name] for name in names}
        server.state.drop("bank")
        for name in names:
            server.state.add(f"bank/{name}", heads[name])

    def is_last(self, step: Step) -> bool:
        """Whether no round follows that would ask the heads."""
        if not self.params.finetune_rounds:
            return True
        return step.phase == FINETUNE and step.round == self.params.finetune_rounds - 1

    def merge_synthesis(self, server: Server, replies: Replies) -> None:
        """Theorem 1 over the clients' moments, and the round's figures."""
        infos = [(reply.samples, {key: reply.payload.info[key] for key in FIGURES}) for reply in replies]
        figures = mean_info([info for _, info in infos], [float(samples) for samples, _ in infos])
        server.state.info["synthesis"] = figures
        if figures and not figures["boundary"]:
            server.note("no client found a boundary sample in this round")
        found = merge_classes(told_by(reply.payload) for reply in replies)
        for k in keep_gaussians(server.state, found):
            server.note(f"what clients told of {server.classes.names[k]!r} is no covariance: it is left out")

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        model = server.task.network(server.state.group("model"), len(server.classes) + 1, slot="predictor")
        return ScoredModel(model, len(server.classes), self.score)

    def threshold(self) -> float | None:
        # The proser score is above 0 exactly where the unknown output is the largest.
        return 0.0 if self.params.decision == "argmax" else None

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """The share of boundary samples in the last round, and how far they were pushed."""
        return dict(server.state.info.get("synthesis", {}))


@METHODS.add("fedoss-paper")
class FedOSSPaper(FedOSS):
    """FedOSS by the letter of the paper: agreement of all heads, steps along the raw gradient, argmax over K + 1."""

    class Params(FedOSSParams):
        optimizer: Literal["sgd", "adam"] = changed("optimizer", "adam")
        lr: float = changed("lr", 5e-4)
        prior: bool = changed("prior", False)
        boundary: Literal["agreement", "informed", "perturbation", "margin", "all"] = changed("boundary", "agreement")
        step_size: float = changed("step_size", 0.1)
        step_unit: Unit = changed("step_unit", "gradient")
        away: Away = changed("away", "class")
        duss: float = changed("duss", 1.0)
        foss: float = changed("foss", 1.0)
        min_count: int = changed("min_count", 1)
        decision: Literal["argmax", "calibrated"] = changed("decision", "argmax")

    digits = {"method": {**FedOSS.digits["method"], "lr": 5e-3}}
    params: Params


def with_neutral_unknown(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights whose unknown output, the head's last row, is the mean of the classes'.

    Pre-training does not touch that output, and the logits of the classes drift away from it: a first step from
    there would tear the network apart. The mean is never the largest, and closest to it where no class stands out.
    """
    changed = dict(weights)
    for name in HEAD:
        changed[name] = weights[name].clone()
        changed[name][-1] = weights[name][:-1].mean(0)
    return changed


def told_by(reply: Payload) -> dict[int, Moments]:
    """The moments in a reply."""
    counts = reply.info.get("counts", {})
    return {int(k): from_tensors(counts[k], tensors) for k, tensors in reply.members("statistics").items()}


def keep_gaussians(state: Payload, found: Mapping[int, Moments]) -> list[int]:
    """Put a Gaussian for every class that enough samples stand behind into `state`; others keep the one they have.

    Returns the classes whose moments are not those of any samples.
    """
    refused = []
    for k, part in found.items():
        if part.count > ENOUGH:
            try:
                state.put(f"gaussians/{k}", Gaussian.of(part).tensors())
            except ValueError:
                refused.append(k)
    return refused
