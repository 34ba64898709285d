"""The weights that a run begins with: new ones, or those of an earlier run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from torch import Tensor

from fedwild.contract.task import copied, weights_of
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
    """Which run it is from, for the log."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes' names."""
        return self.registry.names

    @cached_property
    def fingerprint(self) -> str:
        """Tells whether a run that starts again starts from the same model."""
        payload = Payload.of({"classes": self.classes}, model=self.weights)
        return hashlib.sha256(payload.encode()).hexdigest()

    def onto(self, fresh: Mapping[str, Tensor], classes: Sequence[str]) -> dict[str, Tensor]:
        """These weights for a head like that of `fresh`, whose first rows are `classes`.

        Rows go by class name; classes and added outputs that the earlier run did not have keep their fresh rows.
        """
        here, there = self._rows(classes, len(fresh["head.weight"]))
        weights = copied({name: tensor if name in HEAD else self.weights[name] for name, tensor in fresh.items()})
        for name in HEAD:
            if name not in weights:
                continue
            # A head without bias is one whose bias is zero.
            weights[name][here] = self.weights[name][there] if name in self.weights else 0.0
        return weights

    def _rows(self, classes: Sequence[str], outputs: int) -> tuple[list[int], list[int]]:
        """The rows of a new head that have a counterpart here, and the counterparts."""
        pairs = [(i, self.classes.index(name)) for i, name in enumerate(classes) if name in self.classes]
        added = outputs - len(classes)
        if added == len(self.weights["head.weight"]) - len(self.classes):
            pairs += [(len(classes) + i, len(self.classes) + i) for i in range(added)]
        return [here for here, _ in pairs], [there for _, there in pairs]


def initial_weights(server: Server, outputs: int, bias: bool = True) -> dict[str, Tensor]:
    """Weights for `Method.start`: a new network's, drawn from `server.rng`, or the earlier run's where there is one."""
    fresh = weights_of(server.task.build(outputs, server.rng, bias))
    return fresh if server.initial is None else server.initial.onto(fresh, server.classes.names)
