"""A method that costs nothing but its payloads, to measure what carries them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from fedwild.core.settings import Settings
from fedwild.core.payload import Payload
from fedwild.contract import Client, Method, Phase, Prediction, Predictor, Replies, Server
from fedwild.core.rng import Rng


class Echo(Method):
    """Clients send back what they get."""

    name = "benchmarks.echo:Echo"

    class Params(Settings):
        kilobytes: int = Field(250, ge=1, description="size of the payload")
        tensors: int = Field(10, ge=1, description="in how many tensors")
        rounds: int = Field(3, ge=1, description="round trips")

    params: Params

    def phases(self) -> Sequence[Phase]:
        return [Phase("echo", self.params.rounds)]

    def start(self, server: Server) -> None:
        server.state.put("blob", blob(self.params.kilobytes, self.params.tensors))

    def send(self, server: Server, client: str) -> Payload:
        return Payload.of(blob=server.state.group("blob"))

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        return Payload.of(blob=payload.group("blob"), info={"samples": len(client.train)})

    def merge(self, server: Server, replies: Replies) -> None:
        for reply in replies:
            server.state.put("blob", reply.payload.group("blob"))

    def predictor(self, server: Server, client: Client | None = None) -> Predictor:
        return Constant(len(server.classes))


class Constant(Predictor):
    """Always the same answer."""

    def __init__(self, classes: int) -> None:
        self.classes = classes

    def predict(self, x: Tensor) -> Prediction:
        return Prediction(torch.zeros(len(x), self.classes), torch.zeros(len(x), dtype=torch.float64))


def blob(kilobytes: int, tensors: int) -> dict[str, Tensor]:
    """So many kilobytes of noise in so many tensors."""
    generator = torch.Generator().manual_seed(0)
    length = kilobytes * 1000 // 4 // tensors
    return {f"tensor-{i:04d}": torch.rand(length, generator=generator) for i in range(tensors)}
