"""What one-shot methods share: every client trains alone from its own initialisation and uploads once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from fedwild.corrections import Steering
from fedwild.models import Network
from fedwild.objectives import Objective
from fedwild.openset import Score
from fedwild.payload import Payload
from fedwild.protocol import Client, Method, Phase, Replies, Server
from fedwild.rng import Rng
from fedwild.task import weights_of
from fedwild.training import LocalTraining, train


class OneShotTraining(LocalTraining):
    """How clients of an ensemble train (FedOV, section 4.1)."""

    epochs: int = Field(200, ge=0, description="passes over the client's own data")
    optimizer: Literal["sgd", "adam"] = Field("adam", description="sgd or adam")
    lr: float = Field(1e-3, gt=0, description="learning rate")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty inside the optimiser")


class OneShot(Method):
    """Training, upload and keeping of one model per client. What is answered with them is the subclass's matter."""

    Params = LocalTraining
    composes: ClassVar[tuple[str, ...]] = ("objective", "score")
    objective: Objective
    score: Score

    def phases(self) -> Sequence[Phase]:
        return [Phase("train", 1)]

    def outputs(self, classes: int) -> int:
        """Rows of the head: the known classes and what the objective adds."""
        return classes + self.objective.extra_outputs

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        return {"model": server.task.spec(self.outputs(len(server.classes)))}

    def send(self, server: Server, client: str) -> Payload:
        return Payload()

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        return self.trained(client, rng)[1]

    def trained(self, client: Client, rng: Rng) -> tuple[Network, Payload]:
        """A network trained on the client's data alone, and the reply that carries it."""
        model = client.task.build(self.outputs(len(client.classes)), rng)
        trained = train(model, client.train, self.params, self.objective, Steering(), rng)
        return model, Payload.of(model=weights_of(model), info={"samples": len(client.train), **trained.info()})

    def merge(self, server: Server, replies: Replies) -> None:
        for reply in replies:
            server.state.add(f"models/{reply.client}", reply.payload.group("model"))
            server.state.info.setdefault("samples", {})[reply.client] = reply.samples

    def forget(self, server: Server) -> None:
        """Drop what was uploaded, once something else answers in its place."""
        server.state.drop("models")

    def models(self, server: Server) -> dict[str, Network]:
        """The networks that were uploaded, each in a slot of its own."""
        outputs = self.outputs(len(server.classes))
        return {
            client: server.task.network(weights, outputs, slot=f"predictor-{client}")
            for client, weights in server.state.members("models").items()
        }

    def voters(self, server: Server) -> dict[str, Network]:
        """The networks of clients that had something to learn from."""
        samples = server.state.info.get("samples", {})
        return {client: model for client, model in self.models(server).items() if samples[client]}
