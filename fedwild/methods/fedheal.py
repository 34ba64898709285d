"""FedHEAL. Chen, Huang, Ye: Fair federated learning under domain skew with local consistency and domain diversity.
CVPR 2024.

A weight that a client moves now up and now down is moved by chance: the server leaves such changes out of the mean of
that weight. And clients whose samples lie far from what the model knows move it further; they count more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedwild.aggregation import weighted_mean
from fedwild.methods.base import METHODS
from fedwild.methods.fairness import admitted
from fedwild.methods.fedavg import FedAvg
from fedwild.models.norms import statistics_keys
from fedwild.payload import Payload
from fedwild.protocol import Client, Outcome, Replies, Reply, Server
from fedwild.rng import Rng
from fedwild.subnetworks import packed, packed_spec, unpacked

KEPT, RISES = "kept", "rises"


@METHODS.add("fedheal")
class FedHEAL(FedAvg):
    """Each weight averaged over the clients that move it consistently, who count by how far they move (FedHEAL)."""

    class Params(FedAvg.Params):
        tau: float = Field(0.3, ge=0, lt=1, description="a change counts if more than this share of earlier ones agree")
        beta: float = Field(0.4, ge=0, le=1, description="how fast clients' weights follow distances; 0: all equal")
        distance: Literal["tensors", "whole-squared"] = Field(
            "tensors", description="how far a client moved: the sum of tensors' norms, or the whole's squared norm"
        )

    params: Params

    # --- at the client ------------------------------------------------------------------------------------

    def local(self, payload: Payload, client: Client, rng: Rng) -> Payload:
        reply = super().local(payload, client, rng)
        if reply.info["steps"]:
            kept = self.consistent(changes(payload.group("model"), reply.group("model")), client.state)
        else:
            kept = {
                name: torch.zeros(w.shape, dtype=torch.bool) for name, w in weights_in(reply.group("model")).items()
            }
        reply.put(KEPT, packed(kept))
        return reply

    def consistent(self, delta: Mapping[str, Tensor], state: Payload) -> dict[str, Tensor]:
        """Which elements of delta = w_t - w_m go the way they used to, by the rounds before; then counts this round.

        With l the share of earlier rounds in which an element of delta was >= 0: kept where c > tau, c being l where
        delta >= 0 and 1 - l elsewhere. All are kept in the first round. The state has counts: l would gather rounding.
        """
        rises, rounds = state.group(RISES), state.info.get("rounds", {})
        kept: dict[str, Tensor] = {}
        for name, change in delta.items():
            rising = change >= 0
            before = rises.get(name)
            # A head that has grown begins anew.
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

    # --- at the server ------------------------------------------------------------------------------------

    def expects(self, server: Server) -> dict[str, Mapping[str, Tensor]]:
        groups = super().expects(server)
        return {**groups, KEPT: packed_spec(groups["model"], list(weights_in(groups["model"])))}

    def merge(self, server: Server, replies: Replies) -> None:
        old = server.state.group("model")
        distances = {reply.client: self.moved(old, reply.payload) for reply in replies if reply.samples}
        if not distances:
            server.note("no client had a training sample: the model stays as it is")
        else:
            p = self.reweigh(server, distances)
            shares = {name: p[name] for name in distances}
            rest = weighted_mean(replies, "model", lambda reply: shares.get(reply.client, 0.0))
            assert rest is not None
            server.state.put("model", {**rest, **consistent_mean(old, replies, shares)})
        self.correction.merge(server, replies)

    def moved(self, old: Mapping[str, Tensor], reply: Payload) -> float:
        """How far a client moved the weights that it kept."""
        delta = changes(old, reply.group("model"))
        kept = unpacked(reply.group(KEPT), old)
        squares = [float((delta[name] * kept[name]).square().sum()) for name in sorted(delta)]
        return sum(squares) if self.params.distance == "whole-squared" else sum(map(math.sqrt, squares))

    def reweigh(self, server: Server, distances: Mapping[str, float]) -> dict[str, float]:
        """dp <- (1 - beta) dp + beta dist / sum dist; p <- p + dp, which is divided by its sum: all clients' weights.

        Clients that did not take part keep theirs: p is divided by the participants' sum before and multiplied by it
        after. Otherwise whoever is asked would gain on all the others.
        """
        info, beta = server.state.info, self.params.beta
        p = admitted(info.get("p", {}), {*server.clients, *distances})
        dp: dict[str, float] = info.get("dp", {})
        mass, total = sum(p[name] for name in distances), sum(distances.values())
        # Where nobody moved there is nothing to tell clients by.
        if total:
            for name, distance in distances.items():
                dp[name] = (1 - beta) * dp.get(name, 0.0) + beta * distance / total
            raised = {name: p[name] / mass + dp[name] for name in distances}
            everything = sum(raised.values())
            p |= {name: mass * value / everything for name, value in raised.items()}
        info["p"], info["dp"] = p, dp
        return p

    def measure(self, server: Server, outcome: Outcome) -> dict[str, float]:
        """The largest of the clients' weights."""
        p = server.state.info.get("p", {})
        return {"largest_p": max(p.values())} if p else {}


def weights_in(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What of a network's state is trained, in the order of names: no counters, no running statistics."""
    statistics = set(statistics_keys(state))
    return {name: state[name] for name in sorted(state) if state[name].is_floating_point() and name not in statistics}


def changes(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """delta = w_t - w_m for every weight, in float64."""
    return {name: weight.double() - new[name] for name, weight in weights_in(old).items()}


def consistent_mean(old: Mapping[str, Tensor], replies: Iterable[Reply], p: Mapping[str, float]) -> dict[str, Tensor]:
    """w - sum_m q_m delta_m element by element, q_m being p_m / sum p over those that kept it; nobody: unchanged."""
    sums = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights_in(old).items()}
    totals = {name: torch.zeros_like(total) for name, total in sums.items()}
    for reply in replies:
        if reply.client not in p:
            continue
        kept = unpacked(reply.payload.group(KEPT), old)
        for name, delta in changes(old, reply.payload.group("model")).items():
            sums[name].add_(delta * kept[name], alpha=p[reply.client])
            totals[name].add_(kept[name], alpha=p[reply.client])
    # Where nobody kept an element both are zero.
    return {
        name: (old[name] - total / totals[name].clamp_min(torch.finfo(torch.float64).tiny)).to(old[name].dtype)
        for name, total in sums.items()
    }
