"""Personal heads: classifiers that continue the shared network after a cut and are never averaged."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedwild.methods.fedoss.settings import BranchKind
from fedwild.models import Network


class LightBranch(nn.Module):
    """One linear layer on activations averaged over space."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(channels, outputs)

    def forward(self, h: Tensor) -> Tensor:
        """Return logits (n, outputs) of activations h (n, channels) or (n, channels, *sides)."""
        return self.head(pool(h))


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


def pool(h: Tensor) -> Tensor:
    """Return activations (n, channels, *sides) averaged over space: (n, channels)."""
    return h.flatten(2).mean(2) if h.dim() > 2 else h
