"""The shape of samples, the network and the device: fixed for a run and equal at every client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedwild.core.payload import check_like
from fedwild.core.rng import Rng
from fedwild.models import LayerGraph, Network, build


@dataclass(frozen=True)
class Slot:
    """A network that is reused. Its tensors are looked up once, not for every use."""

    network: Network
    state: dict[str, Tensor]
    parameters: list[torch.nn.Parameter]
    trainable: list[bool]
    """Whether the network was built with each parameter trainable: a user's module may freeze some."""
    addresses: list[int]

    @classmethod
    def of(cls, network: Network) -> Slot:
        parameters = list(network.parameters())
        trainable = [p.requires_grad for p in parameters]
        return cls(network, network.state_dict(), parameters, trainable, [p.data_ptr() for p in parameters])

    def is_intact(self) -> bool:
        """Return whether the network still consists of the tensors with which it was built."""
        now = list(self.network.parameters())
        same = len(now) == len(self.parameters) and all(a is b for a, b in zip(now, self.parameters, strict=True))
        return same and [p.data_ptr() for p in now] == self.addresses

    def load(self, weights: Mapping[str, Tensor]) -> Network:
        """Return the network with a copy of `weights`, in training mode, as trainable as built, without gradients."""
        check_like(weights, self.state, "model")
        for name, tensor in self.state.items():
            tensor.copy_(weights[name])
        for parameter, trainable in zip(self.parameters, self.trainable, strict=True):
            parameter.requires_grad, parameter.grad = trainable, None
        if not all(module.training for module in self.network.modules()):
            self.network.train()
        return self.network


@dataclass
class Task:
    """Builds networks, and keeps one instance per slot so that a worker reuses memory."""

    input_shape: tuple[int, ...]
    model: str
    model_params: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    _slots: dict[tuple[int, bool, str], Slot] = field(default_factory=dict, repr=False, compare=False)
    _specs: dict[tuple[int, bool], dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)
    _graphs: dict[tuple[int, bool], LayerGraph] = field(default_factory=dict, repr=False, compare=False)

    def build(self, outputs: int, rng: Rng, bias: bool = True) -> Network:
        """Return a new network whose weights depend only on `rng`."""
        with rng.seeded("initialisation"):
            network = build(self.model, self.input_shape, outputs, bias=bias, params=self.model_params)
        return network.to(self.device)

    def network(self, weights: Mapping[str, Tensor], outputs: int, bias: bool = True, slot: str = "main") -> Network:
        """Return the reused network of a slot with a copy of `weights`. Use two slots for two models at a time."""
        key = (outputs, bias, slot)
        # A method may have replaced the head or other tensors of the network.
        if key not in self._slots or not self._slots[key].is_intact():
            self._slots[key] = Slot.of(self.build(outputs, Rng(0), bias))
        return self._slots[key].load(weights)

    def weights(self, network: Network) -> dict[str, Tensor]:
        """Return `weights_of` a network, faster if it is that of a slot."""
        slot = next((slot for slot in self._slots.values() if slot.network is network), None)
        return copy_tensors(slot.state) if slot is not None and slot.is_intact() else weights_of(network)

    def spec(self, outputs: int, bias: bool = True) -> dict[str, Tensor]:
        """Return names, shapes and types of the network's state, without values."""
        key = (outputs, bias)
        if key not in self._specs:
            state = self.build(outputs, Rng(0), bias).state_dict()
            self._specs[key] = {name: tensor.to("meta") for name, tensor in state.items()}
        return self._specs[key]

    def graph(self, outputs: int, bias: bool = True) -> LayerGraph:
        """Return the layer graph of the network."""
        key = (outputs, bias)
        if key not in self._graphs:
            self._graphs[key] = self.build(outputs, Rng(0), bias).graph()
        return self._graphs[key]


def weights_of(network: torch.nn.Module) -> dict[str, Tensor]:
    """Return a copy of the network's state on the CPU."""
    return copy_tensors(network.state_dict())


def copy_tensors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of every tensor on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
