"""FedAvg. McMahan, Moore, Ramage, Hampson, Agueera y Arcas: Communication-efficient learning of deep networks
from decentralized data. AISTATS 2017.

Clients train the global weights on their own data; the server averages them, weighted by their numbers of samples.
With another `objective`, `correction`, `aggregation` or `score`, it is FedProx, SCAFFOLD, PROSER-FedAvg ..."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from fedwild.aggregation import Aggregation
from fedwild.contract import Answering, Client, Groups, Method, Payload, Phase, Replies, Rng, Server, Traits
from fedwild.contract.initial import initial_weights
from fedwild.contract.sums import Summable, Sums
from fedwild.methods.registry import METHODS
from fedwild.models import Network
from fedwild.openset import FITTED, DecisionSettings, FitScore, Score, ScoredModel
from fedwild.training import ClientCorrection, Correction, Descent, Objective, Protected, RoundTraining, train


class AveragingRounds(Summable, Protected, Phase):
    """Rounds of local training and averaging, which other methods refine."""

    protects = ("client", "sample")
    params: FedAvg.Params

    def __init__(self, name: str, rounds: int, method: FedAvg) -> None:
        super().__init__(name, rounds)
        self.method, self.params = method, method.params
        self.objective, self.correction = method.objective, method.correction

    def send(self, server: Server, client: str) -> Payload:
        return Payload.of(model=server.state.group("model"), **self.correction.to_clients(server))

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        return self.train(self.method.network(payload, client), payload, client, rng)

    def train(self, model: Network, payload: Payload, client: Client, rng: Rng, own: Descent | None = None) -> Payload:
        """Train a model on the client's own data and return the reply."""
        params, objective = self.training(payload, client)
        correction = self.client_correction(client, model, payload)
        trained = train(model, client.train, params, objective, correction, rng, own or self.descent)
        sent = {"model": client.task.weights(model), **correction.after_training(trained.steps, params.lr)}
        return Payload.of({"samples": len(client.train), **trained.info()}, **sent)

    def training(self, payload: Payload, client: Client) -> tuple[RoundTraining, Objective]:
        """Return how a client trains in this round, and its loss: by default as all clients do."""
        return self.in_round(client.step.round)

    def in_round(self, round_: int) -> tuple[RoundTraining, Objective]:
        """Return how clients train in a round of the phase, counted from 0, and their loss."""
        return self.params.in_round(round_), self.objective

    def client_correction(self, client: Client, model: Network, payload: Payload) -> ClientCorrection:
        return self.correction.at_client(client, model, payload)

    def expects(self, server: Server) -> Groups:
        spec = server.task.spec(self.method.outputs(len(server.classes)), self.method.bias)
        return {"model": spec, **self.correction.expects(server)}

    def sums(self) -> Sums:
        return self.method.aggregation.sums("model") + self.correction.sums()

    def merge(self, server: Server, replies: Replies) -> None:
        self.method.aggregation.update(server, replies, "model", self.weigh)
        self.correction.merge(server, replies)


@METHODS.add("fedavg")
class FedAvg(Method):
    """Averages locally trained weights, weighted by the number of samples."""

    class Params(DecisionSettings, RoundTraining):
        batch_size: int = Field(32, ge=1, description="samples per step; the last partial batch is kept")
        rounds: int = Field(10, ge=1, description="communication rounds")

    parts = {"objective": {}, "correction": {}, "aggregation": {}, "score": {}}
    traits = Traits(starts_from=True)
    round_type: ClassVar[type[AveragingRounds]] = AveragingRounds
    bias: ClassVar[bool] = True  # of the head
    objective: Objective
    correction: Correction
    aggregation: Aggregation
    score: Score
    params: Params

    def phases(self) -> Sequence[Phase]:
        fit = [FitScore(self.score, self.outputs, self.bias)] if self.score.needs_fit else []
        return [self.round_type("train", self.params.rounds, self), *fit]

    def outputs(self, classes: int) -> int:
        """Return the rows of the head: the known classes and what the objective adds."""
        return classes + self.objective.extra_outputs

    def network(self, payload: Payload, client: Client) -> Network:
        return client.task.network(payload.group("model"), self.outputs(len(client.classes)), self.bias)

    def start(self, server: Server) -> None:
        server.state.put("model", initial_weights(server, self.outputs(len(server.classes)), self.bias))

    def answers(self, server: Server) -> Answering:
        rest, limit = (len(server.classes), self.score, server.state.group(FITTED)), self.params.threshold
        return Answering(lambda _: ScoredModel(self.model(server), *rest), server.clients, threshold=limit)

    def model(self, server: Server) -> Network:
        return server.task.network(self.weights(server), self.outputs(len(server.classes)), self.bias, slot="predictor")
