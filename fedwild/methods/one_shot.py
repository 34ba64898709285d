"""What one-shot methods share: every client trains alone from its own initialisation and uploads once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from fedwild.contract import Client, Groups, Method, Payload, Phase, Replies, Rng, Server, weights_of
from fedwild.models import Network
from fedwild.openset import Score
from fedwild.training.corrections import ClientCorrection
from fedwild.training.loop import LocalTraining, train
from fedwild.training.objectives import Objective


class OneShotTraining(LocalTraining):
    """How clients of an ensemble train (FedOV, section 4.1)."""

    epochs: int = Field(200, ge=0, description="passes over the client's own data")
    optimizer: Literal["sgd", "adam"] = Field("adam", description="sgd or adam")
    lr: float = Field(1e-3, gt=0, description="learning rate")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty inside the optimiser")


class Upload(Phase):
    """One round in which every client trains alone and uploads its model, which the server keeps."""

    def __init__(self, method: OneShot) -> None:
        super().__init__("train", 1)
        self.method = method

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        return self.train(client, rng)[1]

    def train(self, client: Client, rng: Rng) -> tuple[Network, Payload]:
        """Return a network trained on the client's data alone, and the reply that carries it."""
        model = client.task.build(self.method.outputs(len(client.classes)), rng)
        trained = train(model, client.train, self.method.params, self.method.objective, ClientCorrection(), rng)
        return model, Payload.of(model=weights_of(model), info={"samples": len(client.train), **trained.info()})

    def expects(self, server: Server) -> Groups:
        return {"model": server.task.spec(self.method.outputs(len(server.classes)))}

    def merge(self, server: Server, replies: Replies) -> None:
        for reply in replies:
            server.state.add(f"models/{reply.client}", reply.payload.group("model"))
            server.state.info.setdefault("samples", {})[reply.client] = reply.samples


class OneShot(Method):
    """One model per client, uploaded once. Subclasses decide how to answer with them."""

    Params = LocalTraining
    parts = {"objective": {}, "score": {}}
    upload_type: ClassVar[type[Upload]] = Upload
    objective: Objective
    score: Score

    def phases(self) -> Sequence[Phase]:
        return [self.upload_type(self)]

    def outputs(self, classes: int) -> int:
        """Return the rows of the head: the known classes and what the objective adds."""
        return classes + self.objective.extra_outputs

    def forget(self, server: Server) -> None:
        """Drop the uploaded models once another model answers in their place."""
        server.state.drop("models")

    def voters(self, server: Server) -> dict[str, Network]:
        """Return the networks of clients with training samples, each in its own slot."""
        outputs, samples = self.outputs(len(server.classes)), server.state.info.get("samples", {})
        return {
            client: server.task.network(weights, outputs, slot=f"predictor-{client}")
            for client, weights in server.state.subgroups("models").items()
            if samples[client]
        }
