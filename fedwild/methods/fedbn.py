"""FedBN. Li, Jiang, Zhang, Kamp, Dou: FedBN: federated learning on non-IID features via local batch normalization.
ICLR 2021.

Clients whose samples look different (other scanners, other cameras) share all weights but those of batch-norm: scale,
shift and running statistics stay with the client, and every client answers with its own.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedwild.aggregation import by_samples, equally
from fedwild.methods.base import METHODS
from fedwild.methods.fedavg import FedAvg
from fedwild.models import Network
from fedwild.models.norms import norm_layers
from fedwild.payload import Payload
from fedwild.predictors import ScoredModel
from fedwild.protocol import Client, Predictor, Reply, Server
from fedwild.rng import Rng

NORMS = "norms"


@METHODS.add("fedbn")
class FedBN(FedAvg):
    """Averaging of all weights but batch-norm's, which every client keeps for itself (FedBN)."""

    class Params(FedAvg.Params):
        weights: Literal["equal", "samples"] = Field("equal", description="the clients' weights in the mean")

    personal = True
    digits = {**FedAvg.digits, "model": {"name": "digit-cnn", "width": 0.25}}
    params: Params

    def start(self, server: Server) -> None:
        super().start(server)
        layers = len(norm_layers(self.answering(server)))
        server.state.info[NORMS] = layers
        if not layers:
            server.note("the network has no batch-norm, so that clients have nothing of their own: one model for all")

    def is_personal(self, server: Server) -> bool:
        return bool(server.state.info[NORMS])

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        weights = {**payload.group("model"), **client.state.group(NORMS)}
        model = client.task.network(weights, self.outputs(len(client.classes)), self.bias)
        reply = self.trained(model, payload, client, rng)
        # Without a step these would be the received ones, of which better ones may come.
        if reply.info["steps"]:
            client.state.put(NORMS, of_norms(model, reply.group("model")))
        return reply

    def weigh(self, reply: Reply) -> float:
        """The mean is of everything; that of the norms is only for clients that have none of their own yet."""
        return equally(reply) if self.params.weights == "equal" else by_samples(reply)

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        own = {} if client is None else client.state.group(NORMS)
        outputs = self.outputs(len(server.classes))
        weights = {**server.state.group("model"), **own}
        model = server.task.network(weights, outputs, self.bias, slot="predictor")
        return ScoredModel(model, len(server.classes), self.score)


def of_norms(model: Network, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a network's state that belong to batch-norm layers, by the layers' type."""
    layers = norm_layers(model)
    return {name: tensor for name, tensor in state.items() if name.rpartition(".")[0] in layers}
