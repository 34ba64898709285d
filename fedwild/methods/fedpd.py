"""FedPD. Yang, Zhu, Liu, Yuan: FedPD: federated open set recognition with parameter disentanglement. ICCV 2023.

Each client trains an open-set classifier and finds out which of its weights matter to the closed-set loss and which
to the open-set loss (LPD, section 4.1). The server aligns the neurons of the clients' models, part by part, and
averages them (GDCA, section 4.2). `fedpd-paper` does so by the letter; `fedpd` is what we found to work better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedwild.aggregation import by_samples, equally, weighted_mean
from fedwild.alignment import Solver, assignment, entropic
from fedwild.alignment.means import PartMeans, RunningMean, of_parts
from fedwild.alignment.parts import Aligned, Alignment, Disentangled, align_three, align_two, align_whole, unaligned
from fedwild.errors import BadReply, UserError
from fedwild.methods.base import METHODS
from fedwild.methods.fedavg import FedAvg
from fedwild.models import LayerGraph, Network
from fedwild.models.norms import measure_statistics, norm_keys, pooled, statistics_keys
from fedwild.payload import Payload
from fedwild.predictors import ScoredModel
from fedwild.protocol import Client, Outcome, Phase, Predictor, Replies, Reply, Server
from fedwild.rng import Rng
from fedwild.subnetworks import Importance, kept, packed, packed_spec, shares, top, unpacked, weight_names

Weight = Callable[[Reply], float]

TRAIN, CALIBRATE = "train", "calibrate"
SUBNETWORKS = ("close", "open")
CALIBRATION_BATCH = 64
# Labels dealt at random to clients of fifty samples are about 0.13 apart, by Dirichlet(0.5) about 0.45.
ALIKE = 0.25


@METHODS.add("fedpd")
class FedPD(FedAvg):
    """Open-set models aligned neuron by neuron before averaging, with each client's batch-norm its own (FedPD)."""

    class Params(FedAvg.Params):
        rounds: int = Field(100, ge=1, description="communication rounds")
        lr: float = Field(0.01, gt=0, description="learning rate")
        weight_decay: float = Field(5e-4, ge=0, description="L2 penalty inside the optimiser")
        start: Literal["shared", "own"] = Field(
            "shared", description="own: in the first round every client starts from random weights of its own"
        )
        importance: Literal["grad*weight", "grad", "none"] = Field(
            "grad*weight", description="what makes a weight matter to a loss (Eq. 4 and 5); none: no subnetworks"
        )
        ratio: float = Field(0.5, gt=0, lt=1, description="share of a layer's weights that a subnetwork keeps")
        maps: Literal["one", "three", "two"] = Field(
            "one",
            description="neurons are matched once for all parts, once for each of three parts (the paper), or once for "
            "each of the two subnetworks (without divide)",
        )
        align: Literal["exact", "none"] | Annotated[float, Field(gt=0)] = Field(
            "exact", description="exact: the best permutation; a number: Sinkhorn with that entropy; none: not at all"
        )
        sweeps: int = Field(5, ge=0, description="passes over all layers after the first one; the paper has none")
        target: int | Literal["mean"] = Field(
            "mean",
            description="whom the others are aligned to: the mean of those aligned so far, or the n-th client by name",
        )
        mean: Literal["auto", "part", "all"] = Field(
            "auto",
            description="part: a weight is averaged over the clients for which it plays the same part, so that each "
            "has a model of its own; all: over all clients; auto: part if clients' labels are alike",
        )
        rest: Literal["kept", "zero"] = Field(
            "kept", description="weights in neither subnetwork; zero: Eq. 16's letter"
        )
        average: Literal["equal", "samples"] = Field("equal", description="the clients' weights in the mean")
        norms: Literal["auto", "local", "merged"] = Field(
            "auto", description="local: every client has a batch-norm of its own; auto: if clients' labels are alike"
        )
        calibrate: bool = Field(True, description="measure batch-norm statistics anew in a last round")

    parts = {"objective": {"name": "proser", "open_weight": 0.01}, "score": {"name": "proser"}}
    digits = {"method": {"rounds": 20, "epochs": 3, "batch_size": 16, "lr": 0.05}}
    params: Params

    def __init__(self, params: Any, **parts: Any) -> None:
        super().__init__(params, **parts)
        self.check_together()
        self.solve: Solver = assignment if isinstance(self.params.align, str) else entropic(self.params.align)

    def check_together(self) -> None:
        """Refuse settings that do not go together."""
        p = self.params
        if p.maps != "one" and p.target == "mean":
            raise UserError(
                f"method.target = 'mean' is not allowed with method.maps = {p.maps!r}: the mean of models has no "
                "parts; take a client's number, such as 0."
            )
        if p.mean == "part" and not self.parts_can_be_told:
            raise UserError(
                "method.mean = 'part' is not allowed with method.importance = "
                f"{p.importance!r}, method.maps = {p.maps!r} and method.align = {p.align!r}: parts can be told apart "
                "only if there are some and one permutation serves all of them; take method.mean = 'all'."
            )

    @property
    def parts_can_be_told(self) -> bool:
        """Whether a merged weight still plays one part for each client."""
        p = self.params
        return p.importance != "none" and p.maps == "one" and isinstance(p.align, str)

    def by_part(self, server: Server) -> bool:
        """Whether every client has weights of its own."""
        return self.parts_can_be_told and decided(self.params.mean, "part", server)

    def own_norms(self, server: Server) -> bool:
        """Whether every client has a batch-norm of its own."""
        return decided(self.params.norms, "local", server) and bool(norm_keys(server.state.group("model")))

    def check_network(self, network: Network) -> None:
        network.graph()
        if self.params.importance != "none" and not self.objective.has_open_loss:
            raise UserError(
                f"objective.name = {self.objective.name!r} is not allowed with method.importance = "
                f"{self.params.importance!r}: it has no open-set loss; take proser or outlier-aware."
            )

    def phases(self) -> Sequence[Phase]:
        last = [Phase(CALIBRATE, 1)] if self.params.calibrate else []
        return [Phase(TRAIN, self.params.rounds), *last]

    def wants(self, server: Server) -> bool:
        return server.step.phase == TRAIN or bool(norm_keys(server.state.group("model")))

    def is_personal(self, server: Server) -> bool:
        return self.by_part(server) or self.own_norms(server)

    # --- at the client ------------------------------------------------------------------------------------

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = self.own_model(payload, client, rng)
        if client.step.phase == CALIBRATE:
            return self.calibrated(model, client, rng)
        if self.params.importance == "none":
            reply = self.trained(model, payload, client, rng)
        else:
            importance = Importance(model, model.graph(), self.params.importance)
            reply = self.trained(model, payload, client, rng, importance)
            self.add_subnetworks(reply, importance)
        reply.info["labels"] = torch.bincount(client.train.y, minlength=len(client.classes)).tolist()
        return reply

    def own_model(self, payload: Payload, client: Client, rng: Rng) -> Network:
        """The model sent, or one of the client's own to begin with."""
        outputs = self.outputs(len(client.classes))
        if self.params.start == "own" and client.step.index == 0:
            return client.task.build(outputs, rng)
        return client.task.network(payload.group("model"), outputs)

    def add_subnetworks(self, reply: Payload, importance: Importance) -> None:
        """The closed-set and the open-set subnetwork (Eq. 6 and 7), as packed bits."""
        close, open_ = (
            {weight: top(score, self.params.ratio) for weight, score in scores.items()}
            for scores in (importance.close, importance.open)
        )
        reply.put("close", packed(close))
        reply.put("open", packed(open_))
        reply.info["mask_bytes"] = sum(bits.numel() for name in SUBNETWORKS for bits in reply.group(name).values())
        # For the log: in layer order, the share of the weights that both subnetworks keep.
        reply.info["overlap"] = [round(float((close[name] & open_[name]).float().mean()), 4) for name in close]

    def calibrated(self, model: Network, client: Client, rng: Rng) -> Payload:
        """Statistics of the client's own samples under the merged weights."""
        device = next(model.parameters()).device
        # In random order: samples may be stored class by class, and a batch of one class is not like the others.
        batches = (x.to(device) for x, _ in client.train.batches(CALIBRATION_BATCH, rng.torch("calibration")))
        measured = measure_statistics(model, batches)
        state = client.task.weights(model)
        statistics = {name: state[name] for name in statistics_keys(state)}
        return Payload.of({"samples": len(client.train) if measured else 0}, statistics=statistics)

    # --- at the server ------------------------------------------------------------------------------------

    def send(self, server: Server, client: str) -> Payload:
        return Payload.of(model=self.weights_of(server, client), **self.correction.down(server))

    def weights_of(self, server: Server, client: str) -> dict[str, Tensor]:
        """The merged model, with the client's own norms and the mean of each weight for the part that it plays here."""
        weights = {**server.state.group("model"), **server.state.group(f"norms/{client}")}
        masks = server.state.members(f"masks/{client}")
        if not masks:
            return weights
        model = disentangled(Payload.of(model=weights, **masks))
        return {**weights, **of_parts(server.state.members("parts"), model)}

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        spec = server.task.spec(self.outputs(len(server.classes)))
        if server.step.phase == CALIBRATE:
            return {"statistics": {name: spec[name] for name in statistics_keys(spec)}}
        groups = super().expects(server)
        if self.params.importance == "none":
            return groups
        masks = packed_spec(spec, weight_names(self.graph(server)))
        return {**groups, **dict.fromkeys(SUBNETWORKS, masks)}

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        if server.step.phase == TRAIN:
            self.check_labels(server, reply)
        weights = reply.group("model")
        for name in SUBNETWORKS:
            for weight, mask in unpacked(reply.group(name), weights).items():
                wanted, found = kept(self.params.ratio, mask.numel()), int(mask.sum())
                if found != wanted:
                    raise BadReply(f"the {name} mask of {weight!r} keeps {found} weights, expected {wanted}")

    def check_labels(self, server: Server, reply: Payload) -> None:
        labels = reply.info.get("labels")
        if (
            not isinstance(labels, list)
            or not all(type(count) is int and count >= 0 for count in labels)
            or len(labels) != len(server.classes)
            or sum(labels) != reply.info["samples"]
        ):
            raise BadReply("info 'labels' must be a count for each class, which add up to 'samples'")

    def merge(self, server: Server, replies: Replies) -> None:
        if server.step.phase == CALIBRATE:
            self.merge_statistics(server, replies)
            return
        if "alike" not in server.state.info:
            self.compare_labels(server, replies)
        weight = equally if self.params.average == "equal" else by_samples
        parts = PartMeans() if self.by_part(server) else None
        mean = weighted_mean(self.aligned(server, replies, weight, parts), "model", weight)
        if mean is None:
            server.note("no client had a training sample: the model stays as it is")
        else:
            server.state.put("model", mean)
            if parts is not None:
                server.state.put("parts", parts.means(mean))
        self.correction.merge(server, replies)

    def compare_labels(self, server: Server, replies: Replies) -> None:
        """Find out, once, whether clients' labels are alike, and say what follows from it."""
        counts = [reply.payload.info["labels"] for reply in replies if reply.samples]
        if not counts:
            return
        distance = label_distance(torch.tensor(counts, dtype=torch.float64))
        server.state.info["alike"] = distance <= ALIKE
        if "auto" in (self.params.mean, self.params.norms):
            verdict, what = ("alike", "a model of its own") if distance <= ALIKE else ("not alike", "the same model")
            server.note(f"clients' labels are {verdict} (distance {distance:.2f}): every client gets {what}")

    def merge_statistics(self, server: Server, replies: Replies) -> None:
        found = ((reply, reply.payload.group("statistics")) for reply in replies if reply.samples)
        if self.own_norms(server):
            for reply, statistics in found:
                server.state.add(f"norms/{reply.client}", statistics)
        else:
            server.state.add("model", pooled((float(reply.samples), statistics) for reply, statistics in found))

    def aligned(self, server: Server, replies: Replies, weight: Weight, parts: PartMeans | None) -> Iterator[Reply]:
        """The replies of clients with samples, their neurons in one common order."""
        graph, info = self.graph(server), server.state.info
        info["moved"] = {}
        chosen, fixed = self.fixed_target(replies)
        so_far = RunningMean()
        for reply in replies:
            if not reply.samples:
                continue
            model = disentangled(reply.payload)
            if model.close:
                server.state.put(f"shares/{reply.client}", shares_of(model))
            target = fixed if fixed is not None else Disentangled(so_far.mean(), {}, {})
            # The target is in its own order already.
            own = reply.client == chosen
            result = unaligned(model, self.params.rest) if own else self.align(graph, model, target)
            so_far.add(result.state)
            if self.own_norms(server):
                norms = {name: result.state[name] for name in norm_keys(result.state)}
                server.state.put(f"norms/{reply.client}", norms)
            if parts is not None:
                ours = Disentangled(result.state, *(graph.permute(m, result.maps) for m in (model.close, model.open)))
                parts.add(ours, weight(reply))
                server.state.put(f"masks/{reply.client}/close", packed(ours.close))
                server.state.put(f"masks/{reply.client}/open", packed(ours.open))
            info["moved"][reply.client] = result.moved
            yield Reply(reply.client, Payload.of(reply.payload.info, model=result.state))

    def fixed_target(self, replies: Replies) -> tuple[str | None, Disentangled | None]:
        """Whom all others are aligned to, and its model; nobody if that is the mean of those aligned so far."""
        if self.params.target == "mean" or self.params.align == "none":
            return None, None
        givers = [reply.client for reply in replies if reply.samples]
        chosen = givers[self.params.target % len(givers)] if givers else None
        return chosen, next((disentangled(reply.payload) for reply in replies if reply.client == chosen), None)

    def align(self, graph: LayerGraph, model: Disentangled, target: Disentangled) -> Aligned:
        """A client's model in the order of the target's neurons."""
        alignment = Alignment(graph, self.solve, self.params.sweeps)
        if self.params.align == "none" or not target.state:
            return unaligned(model, self.params.rest)
        if self.params.maps == "one" or not model.close:
            return align_whole(alignment, unaligned(model, self.params.rest).state, target.state)
        by_parts = align_three if self.params.maps == "three" else align_two
        return by_parts(alignment, model, target, self.params.rest)

    def graph(self, server: Server) -> LayerGraph:
        return server.task.graph(self.outputs(len(server.classes)))

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        weights = server.state.group("model") if client is None else self.weights_of(server, client.name)
        model = server.task.network(weights, self.outputs(len(server.classes)), slot="predictor")
        return ScoredModel(model, len(server.classes), self.score)

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """The mean share of neurons that each kind of map moved in the last round."""
        moves = list(server.state.info.get("moved", {}).values())
        parts = sorted({part for move in moves for part in move})
        return {f"moved_{part}": fmean(move[part] for move in moves if part in move) for part in parts}


@METHODS.add("fedpd-paper")
class FedPDPaper(FedPD):
    """FedPD by the letter of the paper: three parts, each aligned by a map of its own, then averaged."""

    class Params(FedPD.Params):
        mean: Literal["auto", "part", "all"] = Field("all", description=FedPD.Params.model_fields["mean"].description)
        maps: Literal["one", "three", "two"] = Field("three", description=FedPD.Params.model_fields["maps"].description)
        sweeps: int = Field(0, ge=0, description=FedPD.Params.model_fields["sweeps"].description)
        target: int | Literal["mean"] = Field(0, description=FedPD.Params.model_fields["target"].description)
        norms: Literal["auto", "local", "merged"] = Field(
            "merged", description=FedPD.Params.model_fields["norms"].description
        )
        calibrate: bool = Field(False, description=FedPD.Params.model_fields["calibrate"].description)

    params: Params


def decided(setting: str, own: str, server: Server) -> bool:
    """Whether each client has its own: if the setting says so, or if it is auto and the clients' labels are alike."""
    return setting == own or (setting == "auto" and bool(server.state.info.get("alike")))


def label_distance(counts: Tensor) -> float:
    """The mean total variation distance of clients' label counts (clients, K) to those of all, by samples: 0 to 1."""
    shares = counts / counts.sum(1, keepdim=True)
    everyone = counts.sum(0) / counts.sum()
    distances = (shares - everyone).abs().sum(1) / 2
    return float((distances * counts.sum(1)).sum() / counts.sum())


def disentangled(payload: Payload) -> Disentangled:
    """The model of a payload with its subnetworks, which are empty where there are none."""
    state = payload.group("model")
    close, open_ = (unpacked(payload.group(name), state) for name in SUBNETWORKS)
    return Disentangled(state, close, open_)


def shares_of(model: Disentangled) -> dict[str, Tensor]:
    """For every weight, how much of each neuron belongs to which part: (3, neurons)."""
    return {name: shares(model.close[name], model.open[name]) for name in model.close}
