"""A complete method in one file: nearest class mean. No gradient, one round.

    cd examples
    fedwild run --method own_method:NearestMean
    fedwild run --method own_method:NearestMean --set method.unit_length=false

Each client sends the sum and the number of its inputs per class. The answer is the class whose mean is nearest, and
the distance to it is the unknown score.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from fedwild.contract import Answering, Client, Method, Payload, Phase, Prediction, Predictor, Replies, Rounds, Server
from fedwild.core.rng import Rng
from fedwild.core.settings import Settings

FAR = 1e6  # the distance to a class that no client has


class NearestMean(Method):
    """Answers with the class whose mean input is nearest."""

    class Params(Settings):
        unit_length: bool = Field(True, description="scale every input to length 1 first")

    params: Params

    def phases(self) -> Sequence[Phase]:
        return [Rounds("train", 1, self)]

    def send(self, server: Server, client: str) -> Payload:
        return Payload()

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        x, y = client.train.all()
        x = features(x, self.params.unit_length)
        sums = {str(k): x[y == k].sum(0) for k in client.train.classes}
        counts = {str(k): int((y == k).sum()) for k in client.train.classes}
        return Payload.of(sums=sums, info={"samples": len(y), "counts": counts})

    def merge(self, server: Server, replies: Replies) -> None:
        sums: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        for reply in replies:
            for k, value in reply.payload.group("sums").items():
                sums[k] = sums.get(k, torch.zeros_like(value)) + value
                counts[k] = counts.get(k, 0) + reply.payload.info["counts"][k]
        server.state.put("means", {k: sums[k] / counts[k] for k in sums})

    def answers(self, server: Server) -> Answering:
        means, classes = server.state.group("means"), len(server.classes)
        return Answering(lambda _: Nearest(means, classes, self.params.unit_length), server.clients)


class Nearest(Predictor):
    """Minus the distance to a class's mean is its logit."""

    def __init__(self, means: dict[str, Tensor], classes: int, unit_length: bool) -> None:
        self.means, self.classes, self.unit_length = means, classes, unit_length

    def predict(self, x: Tensor) -> Prediction:
        x = features(x, self.unit_length)
        distances = x.new_full((len(x), self.classes), FAR)
        for k, mean in self.means.items():
            distances[:, int(k)] = (x - mean).norm(dim=1)
        return Prediction(-distances, distances.amin(1).double())


def features(x: Tensor, unit_length: bool) -> Tensor:
    """Inputs (n, ...) as rows (n, d)."""
    x = x.flatten(1)
    return torch.nn.functional.normalize(x, dim=1) if unit_length else x
