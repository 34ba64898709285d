"""FedAvg. McMahan, Moore, Ramage, Hampson, Agueera y Arcas: Communication-efficient learning of deep networks
from decentralized data. AISTATS 2017.

Each round the clients train the global weights on their own data, and the server takes the mean, weighted by
the clients' numbers of samples. With another `objective`, `correction` or `score` this one file is FedProx,
SCAFFOLD or PROSER-FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from fedwild.aggregation import by_samples, weighted_mean
from fedwild.corrections import Correction, Steering
from fedwild.initial import initial_weights
from fedwild.methods.base import METHODS
from fedwild.models import Network
from fedwild.objectives import Objective
from fedwild.openset import Score
from fedwild.payload import Payload
from fedwild.predictors import ScoredModel
from fedwild.protocol import Client, Method, Phase, Predictor, Replies, Reply, Server
from fedwild.rng import Rng
from fedwild.training import PLAIN, Descent, LocalTraining, train


@METHODS.add("fedavg")
class FedAvg(Method):
    """Sample-weighted averaging of locally trained weights, round after round."""

    class Params(LocalTraining):
        batch_size: int = Field(32, ge=1, description="samples per step; the last partial batch is kept")
        rounds: int = Field(10, ge=1, description="communication rounds")

    composes: ClassVar[tuple[str, ...]] = ("objective", "correction", "score")
    starts_from = True
    bias: ClassVar[bool] = True
    """Whether the head has a bias."""
    digits = {"method": {"rounds": 20, "epochs": 3, "batch_size": 16}}
    objective: Objective
    correction: Correction
    score: Score
    params: Params

    def phases(self) -> Sequence[Phase]:
        return [Phase("train", self.params.rounds)]

    def outputs(self, classes: int) -> int:
        """Rows of the head: the known classes and what the objective adds."""
        return classes + self.objective.extra_outputs

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        spec = server.task.spec(self.outputs(len(server.classes)), self.bias)
        return {"model": spec, **self.correction.expects(server)}

    def start(self, server: Server) -> None:
        server.state.put("model", initial_weights(server, self.outputs(len(server.classes)), self.bias))

    def send(self, server: Server, client: str) -> Payload:
        return Payload.of(model=server.state.group("model"), **self.correction.down(server))

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = client.task.network(payload.group("model"), self.outputs(len(client.classes)), self.bias)
        return self.trained(model, payload, client, rng)

    def trained(self, model: Network, payload: Payload, client: Client, rng: Rng, descent: Descent = PLAIN) -> Payload:
        """The reply with the model after training on the client's own data."""
        steering = self.steering(client, model, payload)
        trained = train(model, client.train, self.params, self.objective, steering, rng, descent)
        reply = Payload.of(model=client.task.weights(model), **steering.up(trained.steps, self.params.lr))
        reply.info = {"samples": len(client.train), **trained.info()}
        return reply

    def steering(self, client: Client, model: Network, payload: Payload) -> Steering:
        """What bends the client's steps, before its first one."""
        return self.correction.at(client, model, payload)

    def weigh(self, reply: Reply) -> float:
        """A client's weight in the mean."""
        return by_samples(reply)

    def merge(self, server: Server, replies: Replies) -> None:
        mean = weighted_mean(replies, "model", self.weigh)
        if mean is None:
            server.note("no client had a training sample: the model stays as it is")
        else:
            server.state.put("model", mean)
        self.correction.merge(server, replies)

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        return ScoredModel(self.answering(server), len(server.classes), self.score)

    def answering(self, server: Server) -> Network:
        """The network that answers."""
        outputs = self.outputs(len(server.classes))
        return server.task.network(server.state.group("model"), outputs, self.bias, slot="predictor")
