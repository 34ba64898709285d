"""What methods share that weight clients by their losses: weights for newcomers, and losses of the received model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch

from fedwild.contract import Client, Payload, Rng, Server
from fedwild.core.errors import BadReply
from fedwild.methods.fedavg import AveragingRounds
from fedwild.training.loop import mean_loss

RECEIVED = "received_loss"
MAX_LOSS = torch.finfo(torch.float32).max


class LossReportingRounds(AveragingRounds):
    """FedAvg's rounds in which clients also send the loss, before training, of the weights that they received."""

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        model = self.method.network(payload, client)
        loss = mean_loss(model, client.train, self.objective, rng)
        reply = self.train(model, payload, client, rng)
        reply.info[RECEIVED] = loss
        return reply

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        loss = reply.info.get(RECEIVED)
        if not reply.info["samples"]:
            return
        # A larger loss is not a network's, and rounding could make the others' weights vanish.
        if not isinstance(loss, float) or not math.isfinite(loss) or abs(loss) > MAX_LOSS:
            raise BadReply(f"info {RECEIVED!r} is {str(loss)[:40]}, expected a loss")


def add_clients(weights: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Return weights that sum to 1, with 1/N for each new one of `names`; the others are scaled to make room.

    N counts old and new clients, so that all weights are equal where all clients are new.
    """
    new = [name for name in names if name not in weights]
    count = len(weights) + len(new)
    room = len(weights) / count if count else 0.0
    kept = {name: weight * room if new else weight for name, weight in weights.items()}
    return dict(sorted({**kept, **dict.fromkeys(new, 1 / count if count else 0.0)}.items()))
