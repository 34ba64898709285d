"""What methods share that weigh clients by how they fare: weights for newcomers, and losses of the received model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from fedwild.errors import BadReply
from fedwild.methods.fedavg import FedAvg
from fedwild.payload import Payload
from fedwild.protocol import Client, Server
from fedwild.rng import Rng
from fedwild.training import mean_loss

RECEIVED = "received_loss"
LARGEST = torch.finfo(torch.float32).max


class LossReporting(FedAvg):
    """FedAvg whose clients also tell the loss, before training, of the weights that they received."""

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = client.task.network(payload.group("model"), self.outputs(len(client.classes)), self.bias)
        loss = mean_loss(model, client.train, self.objective, rng)
        reply = self.trained(model, payload, client, rng)
        reply.info[RECEIVED] = loss
        return reply

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        loss = reply.info.get(RECEIVED)
        if not reply.info["samples"]:
            return
        # A larger one cannot be a network's, and could make the others' weights vanish in rounding.
        if not isinstance(loss, float) or not math.isfinite(loss) or abs(loss) > LARGEST:
            raise BadReply(f"info {RECEIVED!r} is {str(loss)[:40]}, expected a loss")


def admitted(weights: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Weights that add up to 1, with 1/N for each of `names` that is new; the others are scaled to make room.

    N counts old and new ones, so that all are equal where all are new.
    """
    new = [name for name in names if name not in weights]
    count = len(weights) + len(new)
    room = len(weights) / count if count else 0.0
    kept = {name: weight * room if new else weight for name, weight in weights.items()}
    return dict(sorted({**kept, **dict.fromkeys(new, 1 / count if count else 0.0)}.items()))
