"""A method that does nothing but exchange payloads, to measure the cost of transport."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from fedwild.contract import Answering, Client, Method, Phase, Prediction, Predictor, Replies, Rounds, Server
from fedwild.core.payload import Payload
from fedwild.core.rng import Rng
from fedwild.core.settings import Settings


class Echo(Method):
    """Clients return what they receive."""

    name = "benchmarks.echo:Echo"

    class Params(Settings):
        kilobytes: int = Field(250, ge=1, description="size of the payload")
        tensors: int = Field(10, ge=1, description="number of tensors")
        rounds: int = Field(3, ge=1, description="round trips")

    params: Params

    def phases(self) -> Sequence[Phase]:
        return [Rounds("echo", self.params.rounds, self)]

    def start(self, server: Server) -> None:
        server.state.put("blob", blob(self.params.kilobytes, self.params.tensors))

    def send(self, server: Server, client: str) -> Payload:
        return Payload.of(blob=server.state.group("blob"))

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        return Payload.of(blob=payload.group("blob"), info={"samples": len(client.train)})

    def merge(self, server: Server, replies: Replies) -> None:
        for reply in replies:
            server.state.put("blob", reply.payload.group("blob"))

    def answers(self, server: Server) -> Answering:
        return Answering(lambda _: Constant(len(server.classes)), server.clients)


class Constant(Predictor):
    """Always the same answer."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def predict(self, x: Tensor) -> Prediction:
        return Prediction(torch.zeros(len(x), self.classes), torch.zeros(len(x), dtype=torch.float64))


def blob(kilobytes: int, tensors: int) -> dict[str, Tensor]:
    """Return this many kilobytes of noise in this many tensors."""
    generator = torch.Generator().manual_seed(0)
    length = kilobytes * 1000 // 4 // tensors
    return {f"tensor-{i:04d}": torch.rand(length, generator=generator) for i in range(tensors)}
