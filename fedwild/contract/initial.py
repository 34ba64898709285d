"""Initial weights of a run: new ones, or those of an earlier run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from fedwild.contract.task import copy_tensors, weights_of
from fedwild.core.classes import ClassRegistry
from fedwild.core.payload import Payload

if TYPE_CHECKING:
    from fedwild.contract import Server

HEAD = ("head.weight", "head.bias")
"""The tensors that have a row per output."""


@dataclass(frozen=True)
class Initial:
    """An earlier run's global model."""

    weights: dict[str, Tensor]
    registry: ClassRegistry
    """The classes of the head's first rows; the rows after them are outputs that an objective added."""
    origin: str
    """The name of that run, for the log."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Its thresholds, if this run scores samples in the same way; they hold until the first evaluation."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names."""
        return self.registry.names

    @cached_property
    def fingerprint(self) -> str:
        """A hash that shows whether a resumed run starts from the same model."""
        payload = Payload.of({"classes": self.classes}, model=self.weights)
        return hashlib.sha256(payload.encode()).hexdigest()

    def onto(self, fresh: Mapping[str, Tensor], classes: Sequence[str]) -> dict[str, Tensor]:
        """Return these weights for a head like that of `fresh`, whose first rows are `classes`.

        Rows are matched by class name; classes and added outputs that the earlier run did not have keep fresh rows.
        """
        here, there = self._rows(classes, len(fresh["head.weight"]))
        weights = copy_tensors({name: tensor if name in HEAD else self.weights[name] for name, tensor in fresh.items()})
        for name in HEAD:
            if name not in weights:
                continue
            # A head without bias has a bias of zero.
            weights[name][here] = self.weights[name][there] if name in self.weights else 0.0
        return weights

    def _rows(self, classes: Sequence[str], outputs: int) -> tuple[list[int], list[int]]:
        """Return the rows of a new head that have a counterpart here, and the counterparts."""
        pairs = [(i, self.classes.index(name)) for i, name in enumerate(classes) if name in self.classes]
        added = outputs - len(classes)
        if added == len(self.weights["head.weight"]) - len(self.classes):
            pairs += [(len(classes) + i, len(self.classes) + i) for i in range(added)]
        return [here for here, _ in pairs], [there for _, there in pairs]


def initial_weights(server: Server, outputs: int, bias: bool = True) -> dict[str, Tensor]:
    """Return weights for `Method.start`: those of an earlier run if there is one, else new ones from `server.rng`."""
    fresh = weights_of(server.task.build(outputs, server.rng, bias))
    return fresh if server.initial is None else server.initial.onto(fresh, server.classes.names)
