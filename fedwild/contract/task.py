"""What is learnt: the shape of a sample, the network and the device. Fixed for a run, equal at every site."""

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
    """A network that is lent out again and again. Its tensors are looked up once, not at every loan."""

    network: Network
    state: dict[str, Tensor]
    parameters: list[torch.nn.Parameter]
    places: list[int]

    @classmethod
    def of(cls, network: Network) -> Slot:
        parameters = list(network.parameters())
        return cls(network, network.state_dict(), parameters, [p.data_ptr() for p in parameters])

    def intact(self) -> bool:
        """Whether the network still consists of the tensors it was built with."""
        now = list(self.network.parameters())
        same = len(now) == len(self.parameters) and all(a is b for a, b in zip(now, self.parameters, strict=True))
        return same and [p.data_ptr() for p in now] == self.places

    def holding(self, weights: Mapping[str, Tensor]) -> Network:
        """The network with a copy of `weights`, in training mode, all of it trainable and without gradients."""
        check_like(weights, self.state, "model")
        for name, tensor in self.state.items():
            tensor.copy_(weights[name])
        for parameter in self.parameters:
            parameter.requires_grad, parameter.grad = True, None
        if not all(module.training for module in self.network.modules()):
            self.network.train()
        return self.network


@dataclass
class Task:
    """Builds networks, and keeps one instance per slot so that a worker reuses its memory."""

    input_shape: tuple[int, ...]
    model: str
    model_params: dict[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    _slots: dict[tuple[int, bool, str], Slot] = field(default_factory=dict, repr=False, compare=False)
    _specs: dict[tuple[int, bool], dict[str, Tensor]] = field(default_factory=dict, repr=False, compare=False)

    _graphs: dict[tuple[int, bool], LayerGraph] = field(default_factory=dict, repr=False, compare=False)

    def build(self, outputs: int, rng: Rng, bias: bool = True) -> Network:
        """A newly initialised network whose weights depend on `rng` alone."""
        with rng.seeded("initialisation"):
            network = build(self.model, self.input_shape, outputs, bias=bias, params=self.model_params)
        return network.to(self.device)

    def network(self, weights: Mapping[str, Tensor], outputs: int, bias: bool = True, slot: str = "main") -> Network:
        """The reused network of a slot, holding a copy of `weights`. Use two slots for two models at a time."""
        key = (outputs, bias, slot)
        # A method may have put another head or other tensors into the network that it was lent.
        if key not in self._slots or not self._slots[key].intact():
            self._slots[key] = Slot.of(self.build(outputs, Rng(0), bias))
        return self._slots[key].holding(weights)

    def weights(self, network: Network) -> dict[str, Tensor]:
        """`weights_of` a network that was lent by `network`, without looking through all of its modules."""
        slot = next((slot for slot in self._slots.values() if slot.network is network), None)
        return copied(slot.state) if slot is not None and slot.intact() else weights_of(network)

    def spec(self, outputs: int, bias: bool = True) -> dict[str, Tensor]:
        """Names, shapes and types of the network's state, without its values."""
        key = (outputs, bias)
        if key not in self._specs:
            state = self.build(outputs, Rng(0), bias).state_dict()
            self._specs[key] = {name: tensor.to("meta") for name, tensor in state.items()}
        return self._specs[key]

    def graph(self, outputs: int, bias: bool = True) -> LayerGraph:
        """The layer graph of the network."""
        key = (outputs, bias)
        if key not in self._graphs:
            self._graphs[key] = self.build(outputs, Rng(0), bias).graph()
        return self._graphs[key]


def weights_of(network: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of the network's state, on the CPU, that later training does not change."""
    return copied(network.state_dict())


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor's value, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
