"""AFL. Mohri, Sivek, Suresh: Agnostic federated learning. ICML 2019.

The model is to be good for any mixture of the clients, also for the worst. So the mixture is learnt, too: while the
clients lower their losses, the server raises the weights of those whose losses are high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from fedwild.aggregation import running_mean, weighted_mean
from fedwild.methods.base import METHODS
from fedwild.methods.fairness import RECEIVED, LossReporting, admitted
from fedwild.methods.fedavg import FedAvg
from fedwild.models import Network
from fedwild.protocol import Outcome, Replies, Server
from fedwild.rng import Rng


@METHODS.add("afl")
class AFL(LossReporting):
    """Averaging by a mixture that is learnt: clients whose loss is high count more (agnostic federated learning)."""

    class Params(FedAvg.Params):
        lr_lambda: float = Field(0.1, ge=0, description="step of the mixture along the clients' losses; 0: it is fixed")
        average: bool = Field(True, description="answer with the mean of all rounds' models, not with the last one")

    params: Params

    def participants(self, server: Server, present: Sequence[str], participation: float, rng: Rng) -> Sequence[str]:
        """Everybody: a mixture over clients needs all of their losses."""
        if participation < 1 and server.step.index == 0:
            server.note("afl asks every client in every round: federation.participation has no effect")
        return present

    def merge(self, server: Server, replies: Replies) -> None:
        """w <- sum_k lambda_k w_k / sum_k lambda_k, then lambda <- projection of lambda + lr_lambda * loss.

        A client without a reply keeps its lambda, so the projection is onto what the others have together.
        """
        losses = {reply.client: float(reply.payload.info[RECEIVED]) for reply in replies if reply.samples}
        mixture = admitted(server.state.info.get("mixture", {}), losses)
        mass = sum(mixture[name] for name in losses)
        # Where all lambda is with clients that did not answer, those who did are equals.
        shares = {name: mixture[name] if mass else 1.0 for name in losses}
        mean = weighted_mean(replies, "model", lambda reply: shares.get(reply.client, 0.0))
        if mean is None:
            server.note("no client had a training sample: the model stays as it is")
        else:
            server.state.put("model", mean)
            if self.params.average:
                self.count_in(server, mean)
            raised = [mixture[name] + self.params.lr_lambda * loss for name, loss in losses.items()]
            moved = projected(np.array(raised), mass)
            server.state.info["mixture"] = {**mixture, **dict(zip(losses, moved.tolist(), strict=True))}
        self.correction.merge(server, replies)

    def count_in(self, server: Server, model: Mapping[str, Tensor]) -> None:
        """The mean of the models so far, after this one: m <- m + (w - m) / t."""
        count = server.state.info.get("averaged", 0) + 1
        before = server.state.group("average")
        server.state.put("average", running_mean(before, model, count) if before else model)
        server.state.info["averaged"] = count

    def weights(self, server: Server) -> dict[str, Tensor]:
        """The model that answers."""
        return server.state.group("average" if "average" in server.state else "model")

    def answering(self, server: Server) -> Network:
        return server.task.network(self.weights(server), self.outputs(len(server.classes)), self.bias, slot="predictor")

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """The largest weight in the mixture."""
        mixture = server.state.info.get("mixture", {})
        return {"largest_lambda": max(mixture.values())} if mixture else {}


def projected(values: np.ndarray, total: float = 1.0) -> np.ndarray:
    """The point nearest to `values` (n,) among those without negative entries that add up to `total`.

    It is max(values - t, 0) for the one t that gives the right sum, found from the sorted values (float64).
    """
    # A common shift changes nothing but the rounding of large values.
    values = values.astype(np.float64) - values.max()
    falling = np.sort(values)[::-1]
    surplus = np.cumsum(falling) - total
    counts = np.arange(1, len(falling) + 1)
    # The first value always belongs to those above zero, whatever rounding makes of the comparison.
    positive = max(1, int(np.count_nonzero(falling * counts > surplus)))
    return np.maximum(values - surplus[positive - 1] / positive, 0.0)
