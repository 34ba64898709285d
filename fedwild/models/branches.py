"""Classifiers of a client's own that follow the shared network at a cut (FedOSS's personalised heads)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fedwild.models.network import Network

BranchKind = Literal["light", "full"]


class LightBranch(nn.Module):
    """One linear layer on activations pooled over space."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(channels, outputs)

    def forward(self, h: Tensor) -> Tensor:
        """Logits (n, outputs) of activations h (n, channels) or (n, channels, *sides)."""
        return self.head(pooled(h))


class FullBranch(nn.Module):
    """A copy of all that follows the cut, with the first `outputs` rows of the head."""

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
        """Logits (n, outputs) of activations h (n, ...) at the cut."""
        for name in self.stages:
            h = self.get_submodule(name)(h)
        return self.head(self.neck(h))


def make_branch(kind: BranchKind, network: Network, cut: str, outputs: int) -> nn.Module:
    """A new branch of a network; a full one begins as the network's own classifier behind the cut."""
    if kind == "full":
        return FullBranch(network, cut, outputs)
    return LightBranch(cut_shape(network, cut)[0], outputs)


def cut_shape(network: Network, cut: str) -> tuple[int, ...]:
    """The shape of one sample's activations at the cut."""
    training = network.training
    like = next(network.parameters())
    with torch.no_grad():
        # In evaluation mode one sample is enough, and no running statistics move.
        shape = network.eval().upto(torch.zeros(1, *network.input_shape, device=like.device), cut).shape[1:]
    network.train(training)
    return tuple(shape)


def pooled(h: Tensor) -> Tensor:
    """Activations (n, channels, *sides) averaged over space: (n, channels)."""
    return h.flatten(2).mean(2) if h.dim() > 2 else h


class Bank:
    """Branches of several clients, as they were when the round began; they only answer."""

    def __init__(self, template: nn.Module, members: Sequence[Mapping[str, Tensor]]) -> None:
        self.branches = []
        for weights in members:
            branch = copy.deepcopy(template).eval().requires_grad_(False)
            branch.load_state_dict(weights)
            self.branches.append(branch)

    @torch.no_grad()
    def logits(self, h: Tensor) -> Tensor:
        """(branches, n, K) of activations h (n, ...)."""
        return torch.stack([branch(h) for branch in self.branches])
