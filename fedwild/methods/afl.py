"""AFL. Mohri, Sivek, Suresh: Agnostic federated learning. ICML 2019.

The model should be good for any mixture of the clients, including the worst. So the mixture is learnt as well: while
clients lower their losses, the server raises the weights of clients with high loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from fedwild.aggregation.means import running_mean
from fedwild.contract import Draw, Outcome, Replies, Server
from fedwild.methods.fairness import RECEIVED, LossReportingRounds, add_clients
from fedwild.methods.fedavg import FedAvg
from fedwild.methods.registry import METHODS


class MixtureRounds(LossReportingRounds):
    """Rounds that average by a mixture over clients and then update the mixture."""

    params: AFL.Params

    def who(self, server: Server, present: Sequence[str], draw: Draw) -> Sequence[str]:
        """Everybody: a mixture over clients needs the losses of all."""
        if server.step.index == 0 and len(draw(present)) < len(present):
            server.note("afl trains all clients in every round: federation.participation has no effect")
        return present

    def merge(self, server: Server, replies: Replies) -> None:
        """w <- sum_k lambda_k w_k / sum_k lambda_k, then lambda <- projection of lambda + lr_lambda * loss.

        A client without a reply keeps its lambda, so the projection is onto the total lambda of the others.
        """
        losses = {reply.client: float(reply.payload.info[RECEIVED]) for reply in replies if reply.samples}
        mixture = add_clients(server.state.info.get("mixture", {}), losses)
        mass = sum(mixture[name] for name in losses)
        # If only clients without a reply have weight, those that replied have equal weights.
        shares = {name: mixture[name] if mass else 1.0 for name in losses}
        mean = self.method.aggregation.update(server, replies, "model", lambda reply: shares.get(reply.client, 0.0))
        if mean is not None:
            if self.params.average:
                update_average(server, mean)
            raised = [mixture[name] + self.params.lr_lambda * loss for name, loss in losses.items()]
            moved = project(np.array(raised), mass)
            server.state.info["mixture"] = {**mixture, **dict(zip(losses, moved.tolist(), strict=True))}
        self.correction.merge(server, replies)


@METHODS.add("afl")
class AFL(FedAvg):
    """Learns mixture weights that favour clients with high loss (agnostic federated learning)."""

    class Params(FedAvg.Params):
        lr_lambda: float = Field(0.1, ge=0, description="step of the mixture along the clients' losses; 0: fixed")
        average: bool = Field(True, description="answer with the mean of all rounds' models, not with the last one")

    round_type = MixtureRounds
    params: Params

    def weights(self, server: Server) -> dict[str, Tensor]:
        """Return the model that answers."""
        return server.state.group("average" if "average" in server.state else "model")

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Return the largest weight in the mixture."""
        mixture = server.state.info.get("mixture", {})
        return {"largest_lambda": max(mixture.values())} if mixture else {}


def update_average(server: Server, model: Mapping[str, Tensor]) -> None:
    """Include a round's model in the mean of all models: m <- m + (w - m) / t."""
    count = server.state.info.get("averaged", 0) + 1
    before = server.state.group("average")
    server.state.put("average", running_mean(before, model, count) if before else model)
    server.state.info["averaged"] = count


def project(values: np.ndarray, total: float = 1.0) -> np.ndarray:
    """Return the point nearest to `values` (n,) that has no negative entry and sums to `total`.

    It is max(values - t, 0) for the t that gives this sum, found from the sorted values in float64.
    """
    # A common shift changes only the rounding of large values.
    values = values.astype(np.float64) - values.max()
    falling = np.sort(values)[::-1]
    surplus = np.cumsum(falling) - total
    counts = np.arange(1, len(falling) + 1)
    # The first value is always above zero; the comparison may round.
    positive = max(1, int(np.count_nonzero(falling * counts > surplus)))
    return np.maximum(values - surplus[positive - 1] / positive, 0.0)
