"""Personal heads: where the network is cut, branches that begin there, and the bank of heads that clients receive."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedwild.contract import Payload, Replies, Rng, Server, Task, Tensors
from fedwild.core.errors import unknown_name
from fedwild.methods.fedoss.open_space import Grid
from fedwild.methods.fedoss.settings import AUTO, BranchKind, FedOSSParams
from fedwild.models import Network


class LightBranch(nn.Module):
    """One linear layer on activations averaged over space."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(channels, outputs)

    def forward(self, h: Tensor) -> Tensor:
        """Return logits (n, outputs) of activations h (n, channels) or (n, channels, *sides)."""
        return self.head(h.flatten(2).mean(2) if h.dim() > 2 else h)


class FullBranch(nn.Module):
    """A copy of all stages after the cut, with the first `outputs` rows of the head."""

    def __init__(self, network: Network, cut: str, outputs: int) -> None:
        super().__init__()
        self.stages = network.after_cut(cut)
        for name in self.stages:
            self.add_module(name, copy.deepcopy(network.get_submodule(name)))
        self.neck = copy.deepcopy(network.neck)
        self.head = nn.Linear(network.embedding_dim, outputs)
        with torch.no_grad():
            for name, row in network.head.named_parameters():
                self.head.get_parameter(name).copy_(row[:outputs])

    def forward(self, h: Tensor) -> Tensor:
        """Return logits (n, outputs) of activations h (n, ...) at the cut."""
        for name in self.stages:
            h = self.get_submodule(name)(h)
        return self.head(self.neck(h))


def make_branch(kind: BranchKind, network: Network, cut: str, outputs: int) -> nn.Module:
    """Return a new branch. A full one starts with the weights of the network after the cut."""
    if kind == "full":
        return FullBranch(network, cut, outputs)
    return LightBranch(cut_shape(network, cut)[0], outputs)


def cut_shape(network: Network, cut: str) -> tuple[int, ...]:
    """Return the shape of one sample's activations at the cut."""
    training = network.training
    like = next(network.parameters())
    with torch.no_grad():
        # In evaluation mode, one sample is enough and running statistics do not change.
        shape = network.eval().upto(torch.zeros(1, *network.input_shape, device=like.device), cut).shape[1:]
    network.train(training)
    return tuple(shape)


@dataclass(frozen=True)
class Layout:
    """The cut of a network, and what is attached to it."""

    cut: str
    grid: Grid
    head: dict[str, Tensor]
    """Names, shapes and types of a personal head's tensors, without values."""


class Layouts:
    """The layout of each network, computed once."""

    def __init__(self, params: FedOSSParams) -> None:
        self.params = params
        self._found: dict[Any, Layout] = {}

    def of(self, task: Task, classes: int) -> Layout:
        """Return the layout for a number of known classes."""
        key = (task.model, repr(task.model_params), task.input_shape, classes)
        if key not in self._found:
            network = task.build(classes + 1, Rng(0))
            cut = choose_cut(network, self.params.cut)
            # Seeded, so that the first job of a worker draws the same numbers as any other.
            with Rng(0).seeded("layout"):
                head = make_branch(self.params.branch, network, cut, classes).state_dict()
            grid = Grid.within(cut_shape(network, cut), self.params.dims)
            self._found[key] = Layout(cut, grid, {name: tensor.to("meta") for name, tensor in head.items()})
        return self._found[key]


def choose_cut(network: Network, cut: str) -> str:
    """Return the stage named `cut`. "auto" is the last stage before dense layers, or the last but one without any."""
    if cut != AUTO:
        if cut not in network.cuts:
            raise unknown_name("method.cut", cut, (AUTO, *network.cuts))
        return cut
    dense = network.first_dense()
    end = len(network.cuts) - 1 if dense is None else network.cuts.index(dense)
    return network.cuts[max(0, end - 1)]


class Bank:
    """Frozen personal heads of several clients, and the classes that each of these clients holds."""

    def __init__(
        self, template: nn.Module, heads: Sequence[Tensors], held: Sequence[Sequence[int]], classes: int
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
        heads = payload.subgroups("bank")
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
