"""q-FFL. Li, Sanjabi, Beirami, Smith: Fair resource allocation in federated learning. ICLR 2020.

The clients' losses are raised to the power q + 1 before they are added, so that high losses count more and the clients'
results become more uniform. This is q-FedAvg, which uses local training in place of single steps.
"""

from __future__ import annotations

import torch
from pydantic import Field

from fedwild.aggregation.means import equally, weighted_mean
from fedwild.contract import Payload, Replies, Server
from fedwild.core.errors import BadReply
from fedwild.methods.fairness import RECEIVED, LossReportingRounds
from fedwild.methods.fedavg import FedAvg
from fedwild.methods.registry import METHODS
from fedwild.models.norms import trained_keys

SMALLEST = 1e-10  # added to every loss, so that a loss of zero can have a negative power


class QRounds(LossReportingRounds):
    params: QFFL.Params

    def check(self, server: Server, reply: Payload) -> None:
        super().check(server, reply)
        if reply.info["samples"] and reply.info[RECEIVED] < 0:
            raise BadReply(f"info {RECEIVED!r} is {reply.info[RECEIVED]}, which is negative and has no power q")

    def merge(self, server: Server, replies: Replies) -> None:
        """w <- w - sum_k D_k / sum_k h_k over the clients with samples, in float64, with

            g_k = (w - w_k) / lr,   D_k = F_k^q g_k,   h_k = q F_k^(q - 1) ||g_k||^2 + F_k^q / lr.

        Running statistics of batch-norm are averaged. Losses are divided by the largest one, which cancels except in
        the first term of h_k, so that no power of a loss overflows and sum_k h_k is never zero.
        """
        mean = weighted_mean(replies, "model", equally)
        if mean is None:
            server.note("no client has a training sample: the model does not change")
        else:
            losses = {reply.client: reply.payload.info[RECEIVED] + SMALLEST for reply in replies if reply.samples}
            largest = max(losses.values())
            q, lr = self.params.q, self.params.in_round(server.step.round).lr
            old = server.state.group("model")
            steps = {name: torch.zeros_like(old[name], dtype=torch.float64) for name in trained_keys(old)}
            curvature = 0.0
            for reply in replies:
                if not reply.samples:
                    continue
                new, share, squared = reply.payload.group("model"), losses[reply.client] / largest, 0.0
                for name, step in steps.items():
                    gradient = (old[name].double() - new[name]) / lr
                    squared += float(gradient.square().sum())
                    step.add_(gradient, alpha=share**q)
                curvature += q * share ** (q - 1) * squared / largest + share**q / lr
            moved = {name: (old[name] - step / curvature).to(old[name].dtype) for name, step in steps.items()}
            server.state.put("model", {**mean, **moved})
        self.correction.merge(server, replies)


@METHODS.add("qffl")
class QFFL(FedAvg):
    """Weights updates by the clients' losses to the power q, so that clients with high loss count more."""

    class Params(FedAvg.Params):
        momentum: float = Field(0.0, ge=0, lt=1, description=FedAvg.Params.model_fields["momentum"].description)
        q: float = Field(1.0, ge=0, description="how much high losses count; 0: the plain mean of all clients")

    parts = {"objective": {}, "correction": {}, "score": {}}  # its merge is not a mean of weights
    round_type = QRounds
