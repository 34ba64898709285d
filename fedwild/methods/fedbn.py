"""FedBN. Li, Jiang, Zhang, Kamp, Dou: FedBN: federated learning on non-IID features via local batch normalization.
ICLR 2021.

Clients whose samples look different (other scanners, other cameras) share all weights but those of batch-norm: scale,
shift and running statistics stay with the client, and every client answers with its own.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedwild.aggregation.means import by_samples, equally
from fedwild.contract import Answering, Client, Payload, Predictor, Reply, Rng, Server, Traits
from fedwild.methods.fedavg import AveragingRounds, FedAvg
from fedwild.methods.registry import METHODS
from fedwild.models import Network
from fedwild.models.norms import norm_layers
from fedwild.openset.predictors import ScoredModel

NORMS = "norms"


class OwnNormRounds(AveragingRounds):
    """FedAvg's rounds in which clients keep their own batch-norm layers."""

    params: FedBN.Params

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        weights = {**payload.group("model"), **client.state.group(NORMS)}
        model = client.task.network(weights, self.method.outputs(len(client.classes)), self.method.bias)
        reply = self.train(model, payload, client, rng)
        # Without a step these would be the received ones, and better ones may come.
        if reply.info["steps"]:
            client.state.put(NORMS, select_norms(model, reply.group("model")))
        return reply

    def weigh(self, reply: Reply) -> float:
        """The mean is over all weights; that of the norms serves only clients without their own yet."""
        return equally(reply) if self.params.weights == "equal" else by_samples(reply)


@METHODS.add("fedbn")
class FedBN(FedAvg):
    """Averages all weights except batch-norm's, which every client keeps."""

    class Params(FedAvg.Params):
        weights: Literal["equal", "samples"] = Field("equal", description="the clients' weights in the mean")

    traits = Traits(personal=True, starts_from=True)
    round_type = OwnNormRounds

    def start(self, server: Server) -> None:
        super().start(server)
        layers = len(norm_layers(self.model(server)))
        server.state.info[NORMS] = layers
        if not layers:
            server.note("the network has no batch-norm layers, so all clients share one model")

    def answers(self, server: Server) -> Answering:
        def predictor(client: Client | None) -> Predictor:
            own = {} if client is None else client.state.group(NORMS)
            outputs = self.outputs(len(server.classes))
            model = server.task.network({**server.state.group("model"), **own}, outputs, self.bias, slot="predictor")
            return ScoredModel(model, len(server.classes), self.score)

        personal = bool(server.state.info[NORMS])
        return Answering(predictor, server.clients, personal, self.params.threshold)


def select_norms(model: Network, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a network's state that belong to batch-norm layers, by the layers' type."""
    layers = norm_layers(model)
    return {name: tensor for name, tensor in state.items() if name.rpartition(".")[0] in layers}
