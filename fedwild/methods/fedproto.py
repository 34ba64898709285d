"""FedProto. Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: federated prototype learning across heterogeneous
clients. AAAI 2022.

Weights are never averaged: each client has a network of its own. What clients have in common are prototypes, the mean
embedding of each class. They travel, and every client draws its embeddings to those of all clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedwild.corrections import Steering
from fedwild.corrections.base import Groups
from fedwild.corrections.moon import unrecorded
from fedwild.data.samples import Samples
from fedwild.discovery.learning import embeddings
from fedwild.errors import BadReply, UserError
from fedwild.initial import HEAD, initial_weights
from fedwild.methods.base import METHODS
from fedwild.methods.fedavg import FedAvg
from fedwild.models import Network
from fedwild.models.norms import norm_layers
from fedwild.openset import Score
from fedwild.payload import Payload
from fedwild.predictors import ScoredModel
from fedwild.protocol import Client, Prediction, Predictor, Replies, Server
from fedwild.rng import Rng
from fedwild.task import weights_of
from fedwild.training import train

# Not "model": there is no global one, and a correction that looks for it must not find the first network.
NETWORK, PROTOTYPES = "network", "prototypes"
NO_PROTOTYPE = -1e30
"""The logit of a class that has no prototype: smaller than any distance makes it, and finite."""


@METHODS.add("fedproto")
class FedProto(FedAvg):
    """A network for each client, its embeddings drawn to class means that all clients share (FedProto)."""

    class Params(FedAvg.Params):
        proto_weight: float = Field(1.0, ge=0, description="weight of the embeddings' distance to the prototypes")
        answer: Literal["prototypes", "head"] = Field(
            "prototypes", description="the class of the nearest prototype, or what the client's own head says"
        )

    sends_embeddings = True
    personal = True
    params: Params

    def start(self, server: Server) -> None:
        server.state.put(NETWORK, initial_weights(server, self.outputs(len(server.classes)), self.bias))
        server.state.info["classes"] = len(server.classes)

    # --- at the client ------------------------------------------------------------------------------------

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = self.own_network(payload, client, rng)
        shared = payload.group(PROTOTYPES)
        correction = self.correction.at(client, model, payload)
        steering = Drawn(correction, model, shared, self.params.proto_weight) if shared else correction
        trained = train(model, client.train, self.params, self.objective, steering, rng)
        client.state.put(NETWORK, client.task.weights(model))
        client.state.info["classes"] = len(client.classes)
        mine = class_means(model, client.train, len(client.classes))
        reply = Payload.of(prototypes=mine, **steering.up(trained.steps, self.params.lr))
        reply.info = {"samples": len(client.train), **trained.info()}
        return reply

    def own_network(self, payload: Payload, client: Client, rng: Rng, slot: str = "main") -> Network:
        """The network of the client's last round, or the one that all begin with; classes since then get new rows."""
        source = client.state if NETWORK in client.state else payload
        now = len(client.classes)
        outputs = self.outputs(now)
        if NETWORK not in source:
            client.note("its network is lost, so it begins with a new one")
            return client.task.build(outputs, rng, self.bias)
        weights, before = source.group(NETWORK), source.info["classes"]
        if now > before:
            weights = grown(weights, weights_of(client.task.build(outputs, rng, self.bias)), before, now)
        return client.task.network(weights, outputs, self.bias, slot)

    # --- at the server ------------------------------------------------------------------------------------

    def send(self, server: Server, client: str) -> Payload:
        payload = Payload.of(prototypes=server.state.group(PROTOTYPES))
        if client not in self.owners(server):
            payload.put(NETWORK, server.state.group(NETWORK))
            payload.info["classes"] = server.state.info["classes"]
        return payload

    def owners(self, server: Server) -> Sequence[str]:
        return list(server.state.info.get("owners", []))

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        classes = len(server.classes)
        width = server.task.spec(self.outputs(classes), self.bias)["head.weight"].shape[1]
        means = torch.empty(classes, width, device="meta")
        counts = torch.empty(classes, dtype=torch.int64, device="meta")
        return {PROTOTYPES: {"mean": means, "count": counts}, **self.correction.expects(server)}

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        counts = reply.group(PROTOTYPES)["count"].tolist()
        if min(counts) < 0 or sum(counts) != reply.info["samples"]:
            raise BadReply("the counts of the prototypes must not be negative and must add up to 'samples'")

    def merge(self, server: Server, replies: Replies) -> None:
        """P_c <- the plain mean over the clients that have class c; where nobody has it, P_c stays as it is."""
        spec = self.expects(server)[PROTOTYPES]
        sums = torch.zeros(spec["mean"].shape, dtype=torch.float64)
        clients = torch.zeros(spec["count"].shape, dtype=torch.int64)
        for reply in replies:
            mine = reply.payload.group(PROTOTYPES)
            has = mine["count"] > 0
            sums[has] += mine["mean"][has]
            clients += has
        means = (sums / clients.clamp_min(1)[:, None]).float()
        before = server.state.group(PROTOTYPES)
        if before:
            # Classes may have come since.
            old = clients[: len(before["clients"])] == 0
            means[: len(old)][old] = before["mean"][old]
            clients[: len(old)][old] = before["clients"][old]
        server.state.put(PROTOTYPES, {"mean": means, "clients": clients})
        server.state.info["owners"] = sorted({*self.owners(server), *replies.names})
        self.correction.merge(server, replies)

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        if client is None:
            raise UserError(f"fedproto has one model per client: name one of {', '.join(self.owners(server))}.")
        classes = len(server.classes)
        # Where a client has none yet, the network that all begin with.
        model = self.own_network(server.state, client, Rng(0).child("rows", client.name), "predictor")
        if self.params.answer == "head":
            return ScoredModel(model, classes, self.score)
        return NearestPrototype(model, classes, self.score, server.state.group(PROTOTYPES))


class Drawn(Steering):
    """A correction with the penalty proto_weight * 1/(n d) sum_i ||f(x_i) - P_{y_i}||^2 beside its own.

    f(x) (n, d) are the embeddings of a batch. Samples of a class without prototype count in n and add nothing.
    """

    def __init__(self, steering: Steering, model: Network, shared: Mapping[str, Tensor], weight: float) -> None:
        self.steering, self.model, self.weight = steering, model, weight
        self.norms = [layer for layer in norm_layers(model).values() if layer.track_running_stats]
        rows = model.head.out_features - len(shared["mean"])
        # Rows for classes that have come since the prototypes were made.
        self.prototypes = F.pad(shared["mean"], (0, 0, 0, rows)).to(model.head.weight.device)
        self.known = F.pad(shared["clients"], (0, rows)).to(model.head.weight.device) > 0

    def penalty(self, x: Tensor, y: Tensor) -> Tensor | None:
        other = self.steering.penalty(x, y)
        if not self.weight:
            return other
        # The objective's pass has already shown these samples to batch-norm.
        with unrecorded(self.norms):
            z = self.model.embed(x)
        apart = (z - self.prototypes[y]).square() * self.known[y][:, None]
        own = self.weight * apart.mean()
        return own if other is None else own + other

    def bend(self) -> None:
        self.steering.bend()

    def up(self, steps: int, lr: float) -> Groups:
        return self.steering.up(steps, lr)


class NearestPrototype(ScoredModel):
    """The logits are -||f(x) - P_c||^2. A score of the unknown output takes that of the network's own head."""

    def __init__(self, model: Network, classes: int, score: Score, shared: Mapping[str, Tensor]) -> None:
        super().__init__(model, classes, score)
        device = model.head.weight.device
        self.prototypes, self.known = shared["mean"].to(device), (shared["clients"] > 0).to(device)

    @torch.inference_mode()
    def predict(self, x: Tensor) -> Prediction:
        z = self.model.embed(x)
        logits = z.new_full((len(z), self.classes), NO_PROTOTYPE)
        # Differences, not products: what is near must not drown in the rounding of long embeddings.
        for c in self.known.nonzero().flatten().tolist():
            logits[:, c] = -(z - self.prototypes[c]).square().sum(dim=1)
        outputs = self.model.head(z) if self.score.entry.reads_unknown else logits
        return Prediction(logits, self.score.of(outputs, self.classes))


def grown(weights: Mapping[str, Tensor], fresh: Mapping[str, Tensor], before: int, now: int) -> dict[str, Tensor]:
    """Weights whose head has `fresh` rows for the classes since; outputs that an objective added stay the last."""
    wider = {name: fresh[name].clone() for name in HEAD if name in weights}
    for name, rows in wider.items():
        rows[:before] = weights[name][:before]
        rows[now:] = weights[name][before:]
    return {**weights, **wider}


def class_means(model: Network, samples: Samples, classes: int) -> dict[str, Tensor]:
    """For each class the mean embedding (K, d) of a network as it is, in evaluation mode, and the samples (K,)."""
    z = embeddings(model, samples)
    sums = torch.zeros(classes, model.embedding_dim, dtype=torch.float64).index_add_(0, samples.y, z.double())
    counts = torch.bincount(samples.y, minlength=classes)
    return {"mean": (sums / counts.clamp_min(1)[:, None]).float(), "count": counts}
