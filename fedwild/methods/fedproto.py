"""FedProto. Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: federated prototype learning across heterogeneous
clients. AAAI 2022.

Weights are never averaged: each client has its own network. What clients share are prototypes, the mean embedding of
each class. Every client pulls its embeddings towards the prototypes of all clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedwild.contract import Answering, Client, Groups, Prediction, Predictor, Replies, Server, Traits, initial_weights
from fedwild.contract.initial import HEAD
from fedwild.contract.sums import Sums
from fedwild.contract.task import weights_of
from fedwild.core.errors import BadReply, UserError
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.data.samples import Samples
from fedwild.methods.fedavg import AveragingRounds, FedAvg
from fedwild.methods.registry import METHODS
from fedwild.models import Network
from fedwild.models.inference import embeddings
from fedwild.models.norms import frozen_statistics, norm_layers
from fedwild.openset.predictors import ScoredModel
from fedwild.openset.scores import Score, Signals
from fedwild.training.corrections import ClientCorrection
from fedwild.training.loop import train

# Not "model": there is no global model, and a correction that looks for one must not find the initial network.
NETWORK, PROTOTYPES = "network", "prototypes"
NO_PROTOTYPE = -1e30
"""The logit of a class without prototype: smaller than any distance gives, and finite."""


class PrototypeRounds(AveragingRounds):
    """Rounds in which clients train their own networks and send class means of embeddings."""

    method: FedProto
    params: FedProto.Params

    def send(self, server: Server, client: str) -> Payload:
        payload = Payload.of(prototypes=server.state.group(PROTOTYPES))
        if client not in owners(server):
            payload.put(NETWORK, server.state.group(NETWORK))
            payload.info["classes"] = server.state.info["classes"]
        return payload

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = self.method.own_network(payload, client, rng)
        shared = payload.group(PROTOTYPES)
        correction = self.correction.at_client(client, model, payload)
        if shared:
            correction = PullToPrototypes(correction, model, shared, self.params.proto_weight)
        params = self.params.in_round(client.step.round)
        trained = train(model, client.train, params, self.objective, correction, rng)
        client.state.put(NETWORK, client.task.weights(model))
        client.state.info["classes"] = len(client.classes)
        mine = class_means(model, client.train, len(client.classes))
        reply = Payload.of(prototypes=mine, **correction.after_training(trained.steps, params.lr))
        reply.info = {"samples": len(client.train), **trained.info()}
        return reply

    def expects(self, server: Server) -> Groups:
        classes = len(server.classes)
        width = server.task.spec(self.method.outputs(classes), self.method.bias)["head.weight"].shape[1]
        means = torch.empty(classes, width, device="meta")
        counts = torch.empty(classes, dtype=torch.int64, device="meta")
        return {PROTOTYPES: {"mean": means, "count": counts}, **self.correction.expects(server)}

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        counts = reply.group(PROTOTYPES)["count"].tolist()
        if min(counts) < 0 or sum(counts) != reply.info["samples"]:
            raise BadReply("the counts of the prototypes must not be negative and must sum to 'samples'")

    def sums(self) -> Sums:
        return Sums(totals=(PROTOTYPES,)) + self.correction.sums()

    def summands(self, reply: Payload) -> Payload:
        """Add for each class whether this client has it, since the merge counts such clients."""
        mine = reply.group(PROTOTYPES)
        summed = Payload(dict(reply.tensors), reply.info)
        summed.add(PROTOTYPES, {"mean": mine["mean"].double(), "clients": (mine["count"] > 0).long()})
        return summed

    def summed_groups(self, server: Server) -> Groups:
        groups = self.expects(server)
        means, counts = groups[PROTOTYPES]["mean"], groups[PROTOTYPES]["count"]
        return {**groups, PROTOTYPES: {"mean": means.double(), "count": counts, "clients": counts}}

    def merge(self, server: Server, replies: Replies) -> None:
        """P_c <- the plain mean over the clients that have class c; without such a client, P_c does not change."""
        spec = self.expects(server)[PROTOTYPES]
        sums = torch.zeros(spec["mean"].shape, dtype=torch.float64)
        clients = torch.zeros(spec["count"].shape, dtype=torch.int64)
        for reply in replies:
            mine = reply.payload.group(PROTOTYPES)
            has = mine["count"] > 0
            sums[has] += mine["mean"][has]
            clients += mine.get("clients", has)
        means = (sums / clients.clamp_min(1)[:, None]).float()
        before = server.state.group(PROTOTYPES)
        if before:
            # There may be new classes since then.
            old = clients[: len(before["clients"])] == 0
            means[: len(old)][old] = before["mean"][old]
            clients[: len(old)][old] = before["clients"][old]
        server.state.put(PROTOTYPES, {"mean": means, "clients": clients})
        server.state.info["owners"] = sorted({*owners(server), *replies.names})
        self.correction.merge(server, replies)


@METHODS.add("fedproto")
class FedProto(FedAvg):
    """Trains one network per client, with embeddings pulled towards class means that all clients share."""

    class Params(FedAvg.Params):
        proto_weight: float = Field(1.0, ge=0, description="weight of the distance of embeddings to the prototypes")
        answer: Literal["prototypes", "head"] = Field(
            "prototypes", description="answer with the class of the nearest prototype, or with the client's own head"
        )

    parts = {"objective": {}, "correction": {}, "score": {}}  # its merge is not a mean of weights
    traits = Traits(personal=True, starts_from=True, sends_embeddings=True)
    round_type = PrototypeRounds
    params: Params

    def check(self, network: Network | None, start_from: str | None) -> None:
        if self.params.decision == "argmax" and self.params.answer == "prototypes":
            raise UserError(
                "method.answer = 'prototypes' is not allowed with method.decision = 'argmax', which compares outputs "
                "of the head. Use method.answer = 'head'."
            )

    def start(self, server: Server) -> None:
        server.state.put(NETWORK, initial_weights(server, self.outputs(len(server.classes)), self.bias))
        server.state.info["classes"] = len(server.classes)

    def own_network(self, payload: Payload, client: Client, rng: Rng, slot: str = "main") -> Network:
        """Return the network of the client's last round, or the initial one; later classes get new rows."""
        source = client.state if NETWORK in client.state else payload
        now = len(client.classes)
        outputs = self.outputs(now)
        if NETWORK not in source:
            client.note("its network is lost, so it begins with a new one")
            return client.task.build(outputs, rng, self.bias)
        weights, before = source.group(NETWORK), source.info["classes"]
        if now > before:
            weights = grow_head(weights, weights_of(client.task.build(outputs, rng, self.bias)), before, now)
        return client.task.network(weights, outputs, self.bias, slot)

    def answers(self, server: Server) -> Answering:
        names, classes = owners(server), len(server.classes)

        def predictor(client: Client | None) -> Predictor:
            if client is None:
                raise UserError(f"fedproto has one model per client: choose one of {', '.join(names)}.")
            # A client without a network yet answers with the initial one.
            model = self.own_network(server.state, client, Rng(0).child("rows", client.name), "predictor")
            if self.params.answer == "head":
                return ScoredModel(model, classes, self.score)
            return NearestPrototype(model, classes, self.score, server.state.group(PROTOTYPES))

        return Answering(predictor, names, personal=True, threshold=self.params.threshold)


def owners(server: Server) -> list[str]:
    """Return the clients that have trained a network."""
    return list(server.state.info.get("owners", []))


class PullToPrototypes(ClientCorrection):
    """A correction with the additional penalty proto_weight * 1/(n d) sum_i ||f(x_i) - P_{y_i}||^2.

    f(x) (n, d) are the embeddings of a batch. Samples of a class without prototype count in n and add nothing.
    """

    def __init__(
        self, correction: ClientCorrection, model: Network, shared: Mapping[str, Tensor], weight: float
    ) -> None:
        self.correction, self.model, self.weight = correction, model, weight
        self.norms = [layer for layer in norm_layers(model).values() if layer.track_running_stats]
        rows = model.head.out_features - len(shared["mean"])
        # Rows for classes that are newer than the prototypes.
        self.prototypes = F.pad(shared["mean"], (0, 0, 0, rows)).to(model.head.weight.device)
        self.known = F.pad(shared["clients"], (0, rows)).to(model.head.weight.device) > 0

    def penalty(self, x: Tensor, y: Tensor) -> Tensor | None:
        other = self.correction.penalty(x, y)
        if not self.weight:
            return other
        # The objective's forward pass has already updated batch-norm with these samples.
        with frozen_statistics(self.norms):
            z = self.model.embed(x)
        apart = (z - self.prototypes[y]).square() * self.known[y][:, None]
        own = self.weight * apart.mean()
        return own if other is None else own + other

    def before_step(self) -> None:
        self.correction.before_step()

    def after_training(self, steps: int, lr: float) -> Groups:
        return self.correction.after_training(steps, lr)


class NearestPrototype(ScoredModel):
    """Answers with logits -||f(x) - P_c||^2. A score that reads the unknown output takes it from the network's head."""

    def __init__(self, model: Network, classes: int, score: Score, shared: Mapping[str, Tensor]) -> None:
        super().__init__(model, classes, score)
        device = model.head.weight.device
        self.prototypes, self.known = shared["mean"].to(device), (shared["clients"] > 0).to(device)

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Prediction:
        z = self.model.embed(x)
        logits = z.new_full((len(z), self.classes), NO_PROTOTYPE)
        # Differences, not products: rounding of long embeddings must not hide small distances.
        for c in self.known.nonzero().flatten().tolist():
            logits[:, c] = -(z - self.prototypes[c]).square().sum(dim=1)
        outputs = self.model.head(z) if self.score.needs_unknown else logits
        return Prediction(logits, self.score.score(Signals(outputs, self.classes, z), self.fitted))


def grow_head(weights: Mapping[str, Tensor], fresh: Mapping[str, Tensor], before: int, now: int) -> dict[str, Tensor]:
    """Return weights with `fresh` head rows for new classes; outputs that an objective added stay last."""
    wider = {name: fresh[name].clone() for name in HEAD if name in weights}
    for name, rows in wider.items():
        rows[:before] = weights[name][:before]
        rows[now:] = weights[name][before:]
    return {**weights, **wider}


def class_means(model: Network, samples: Samples, classes: int) -> dict[str, Tensor]:
    """Return for each class the mean embedding (K, d) and the number of samples (K,), in evaluation mode."""
    z = embeddings(model, samples)
    sums = torch.zeros(classes, model.embedding_dim, dtype=torch.float64).index_add_(0, samples.y, z.double())
    counts = torch.bincount(samples.y, minlength=classes)
    return {"mean": (sums / counts.clamp_min(1)[:, None]).float(), "count": counts}
