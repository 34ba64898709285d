"""FedHEAL. Chen, Huang, Ye: Fair federated learning under domain skew with local consistency and domain diversity.
CVPR 2024.

A weight that a client moves now up and now down moves by chance: the server excludes such changes from the mean of that
weight. Clients whose samples are far from what the model knows move it further; they count more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedwild.aggregation.means import weighted_mean
from fedwild.contract import Client, Groups, Outcome, Payload, Replies, Reply, Rng, Server
from fedwild.core.bits import pack_bits, packed_spec, unpack_bits
from fedwild.methods.fairness import add_clients
from fedwild.methods.fedavg import AveragingRounds, FedAvg
from fedwild.methods.registry import METHODS
from fedwild.models.norms import trained_keys

KEPT, RISES = "kept", "rises"


class ConsistentRounds(AveragingRounds):
    """Rounds that average each weight over the clients that update it consistently."""

    params: FedHEAL.Params

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = super().local(payload, client, rng)
        if reply.info["steps"]:
            kept = self.select_consistent(changes(payload.group("model"), reply.group("model")), client.state)
        else:
            kept = {
                name: torch.zeros(w.shape, dtype=torch.bool) for name, w in weights_in(reply.group("model")).items()
            }
        reply.put(KEPT, pack_bits(kept))
        return reply

    def select_consistent(self, delta: Mapping[str, Tensor], state: Payload) -> dict[str, Tensor]:
        """Return which elements of delta = w_t - w_m have the sign of earlier rounds; then count this round.

        With l the share of earlier rounds in which an element of delta was >= 0, it is kept where c > tau; c is l where
        delta >= 0, else 1 - l. All are kept in the first round. The state holds counts, since l would accumulate
        rounding errors.
        """
        rises, rounds = state.group(RISES), state.info.get("rounds", {})
        kept: dict[str, Tensor] = {}
        for name, change in delta.items():
            rising = change >= 0
            before = rises.get(name)
            # A head that has grown starts counting again.
            if before is None or before.shape != change.shape:
                before, rounds[name] = torch.zeros(change.shape, dtype=torch.int32), 0
            agreeing = torch.where(rising, before, rounds[name] - before)
            kept[name] = agreeing.double() / max(1, rounds[name]) > self.params.tau
            if not rounds[name]:
                kept[name].fill_(True)
            rises[name] = before + rising
            rounds[name] += 1
        state.put(RISES, rises)
        state.info["rounds"] = rounds
        return kept

    def expects(self, server: Server) -> Groups:
        groups = super().expects(server)
        return {**groups, KEPT: packed_spec(groups["model"], list(weights_in(groups["model"])))}

    def merge(self, server: Server, replies: Replies) -> None:
        old = server.state.group("model")
        distances = {reply.client: self.distance(old, reply.payload) for reply in replies if reply.samples}
        if not distances:
            server.note("no client has a training sample: the model does not change")
        else:
            p = self.reweigh(server, distances)
            shares = {name: p[name] for name in distances}
            rest = weighted_mean(replies, "model", lambda reply: shares.get(reply.client, 0.0))
            assert rest is not None
            server.state.put("model", {**rest, **consistent_mean(old, replies, shares)})
        self.correction.merge(server, replies)

    def distance(self, old: Mapping[str, Tensor], reply: Payload) -> float:
        """Return how far a client moved the weights that it kept."""
        delta = changes(old, reply.group("model"))
        kept = unpack_bits(reply.group(KEPT), old)
        squares = [float((delta[name] * kept[name]).square().sum()) for name in sorted(delta)]
        return sum(squares) if self.params.distance == "whole-squared" else sum(map(math.sqrt, squares))

    def reweigh(self, server: Server, distances: Mapping[str, float]) -> dict[str, float]:
        """Update all clients' weights: dp <- (1 - beta) dp + beta dist / sum dist; p <- p + dp, divided by its sum.

        Clients that do not take part keep their weights: p is divided by the participants' sum before and multiplied by
        it after. Otherwise every participant would gain on all others.
        """
        info, beta = server.state.info, self.params.beta
        p = add_clients(info.get("p", {}), {*server.clients, *distances})
        dp: dict[str, float] = info.get("dp", {})
        mass, total = sum(p[name] for name in distances), sum(distances.values())
        # If no client moved, weights stay.
        if total:
            for name, distance in distances.items():
                dp[name] = (1 - beta) * dp.get(name, 0.0) + beta * distance / total
            raised = {name: p[name] / mass + dp[name] for name in distances}
            everything = sum(raised.values())
            p |= {name: mass * value / everything for name, value in raised.items()}
        info["p"], info["dp"] = p, dp
        return p


@METHODS.add("fedheal")
class FedHEAL(FedAvg):
    """Averages each weight over the clients that update it consistently, weighted by the size of their updates."""

    class Params(FedAvg.Params):
        tau: float = Field(0.3, ge=0, lt=1, description="a change counts if more than this share of earlier ones agree")
        beta: float = Field(0.4, ge=0, le=1, description="how fast clients' weights follow distances; 0: all equal")
        distance: Literal["tensors", "whole-squared"] = Field(
            "tensors", description="how far a client moved: the sum of tensors' norms, or the squared norm of all"
        )

    parts = {"objective": {}, "correction": {}, "score": {}}  # its merge is not a mean of weights
    round_type = ConsistentRounds

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """Return the largest of the clients' weights."""
        p = server.state.info.get("p", {})
        return {"largest_p": max(p.values())} if p else {}


def weights_in(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the trained part of a network's state, in the order of names: no counters, no running statistics."""
    return {name: state[name] for name in sorted(trained_keys(state))}


def changes(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return delta = w_t - w_m for every weight, in float64."""
    return {name: weight.double() - new[name] for name, weight in weights_in(old).items()}


def consistent_mean(old: Mapping[str, Tensor], replies: Iterable[Reply], p: Mapping[str, float]) -> dict[str, Tensor]:
    """Return w - sum_m q_m delta_m by element, with q_m = p_m / sum p over the clients that kept the element."""
    sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights_in(old).items()}
    totals = {name: torch.zeros_like(total) for name, total in sums.items()}
    for reply in replies:
        if reply.client not in p:
            continue
        kept = unpack_bits(reply.payload.group(KEPT), old)
        for name, delta in changes(old, reply.payload.group("model")).items():
            sums[name].add_(delta * kept[name], alpha=p[reply.client])
            totals[name].add_(kept[name], alpha=p[reply.client])
    # Where no client kept an element, both are zero and it does not change.
    return {
        name: (old[name] - total / totals[name].clamp_min(torch.finfo(torch.float64).tiny)).to(old[name].dtype)
        for name, total in sums.items()
    }
