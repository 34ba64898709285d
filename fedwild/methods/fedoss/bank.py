"""The bank of personal heads: a snapshot that the server takes after each round and sends to all clients."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedwild.contract import Replies, Server
from fedwild.core.payload import Payload


class Bank:
    """Frozen personal heads of several clients, and the classes that each of these clients holds."""

    def __init__(
        self, template: nn.Module, heads: Sequence[Mapping[str, Tensor]], held: Sequence[Sequence[int]], classes: int
    ) -> None:
        self.branches = []
        self.held = torch.zeros(len(heads), classes, dtype=torch.bool)
        """(heads, K)"""
        for row, (weights, own) in enumerate(zip(heads, held, strict=True)):
            branch = copy.deepcopy(template).eval().requires_grad_(False)
            branch.load_state_dict(weights)
            self.branches.append(branch)
            self.held[row, list(own)] = True

    @classmethod
    def received(cls, payload: Payload, template: nn.Module, classes: int) -> Bank:
        """Return the bank that the server sent; it is empty for boundary rules that use no heads."""
        heads = payload.members("bank")
        return cls(template, list(heads.values()), [payload.info["held"][name] for name in heads], classes)

    @torch.no_grad()
    def logits(self, h: Tensor) -> Tensor:
        """Return logits (heads, n, K) of activations h (n, ...)."""
        return torch.stack([branch(h) for branch in self.branches])


def merge_bank(server: Server, replies: Replies, limit: int) -> None:
    """Store the last head of each client for the next round, at most `limit` of them, chosen at random."""
    before: dict[str, list[int]] = server.state.info.get("held", {})
    now = {reply.client: reply.payload.info["held"] for reply in replies if reply.samples}
    names = sorted({**before, **now})
    if len(names) > limit:
        chosen = server.rng.numpy("bank").choice(len(names), limit, replace=False)
        names = [names[i] for i in sorted(chosen)]
    heads = {name: server.state.group(f"bank/{name}") for name in names if name not in now}
    heads |= {reply.client: reply.payload.group("head") for reply in replies if reply.client in names}
    server.state.info["held"] = {name: {**before, **now}[name] for name in names}
    server.state.drop("bank")
    for name in names:
        server.state.add(f"bank/{name}", heads[name])


def drop_bank(server: Server) -> None:
    """Delete the bank when no later round uses it."""
    server.state.drop("bank")
    server.state.info.pop("held", None)
