"""The record that the phases of a stage share about its newcomer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fedwild.contract import Server
from fedwild.core.classes import ClassEntry, ClassRegistry

Kind = Literal["nothing", "domain", "classes"]
"""What a newcomer brings."""
Status = Literal["declared", "domain", "classes", "nothing", "refused", "nobody", "welcomed"]
"""How far the stage is: the newcomer has declared its classes, it brings a new domain or new classes, or it is over."""
ACTIVE = ("declared", "domain", "classes")


@dataclass(frozen=True)
class Arrival:
    """The newcomer of a stage. It is part of the server's state, so that a resumed run continues with it."""

    kind: Status
    before: tuple[ClassEntry, ...] = ()
    """The classes before the newcomer came."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """`state.info` before the newcomer came."""
    declared: tuple[str, ...] = ()
    """The newcomer's classes that were not known; after discovery, those of them that are new."""
    samples: int = 0
    """Number of training samples of all source clients."""
    sources: int = 0
    """Number of source clients that replied."""
    shift: float = math.nan
    """S: the shift of the newcomer's samples from the source clients' samples of the same classes."""
    limit: float = 0.0
    """T_D: the largest S that is not a new domain."""
    alike: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """The nearest known class of each declared class, and the shift from it."""

    @classmethod
    def of(cls, server: Server) -> Arrival:
        """Return the record in the server's state."""
        return cls.from_json(server.state.info["arrival"])

    def store(self, server: Server) -> None:
        """Put this record into the server's state."""
        server.state.info["arrival"] = self.to_json()

    @property
    def known(self) -> int:
        """The number of classes before the newcomer came."""
        return len(self.before)

    def classes(self) -> ClassRegistry:
        """Return a new registry with the classes before the newcomer came."""
        return ClassRegistry(list(self.before))

    def to_json(self) -> dict[str, Any]:
        """Return all fields while the stage is active, and only the kind once it is over."""
        if self.kind not in ACTIVE:
            return {"kind": self.kind}
        return {**asdict(self), "before": self.classes().to_json(), "declared": list(self.declared)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Arrival:
        """Return the record that `to_json` wrote."""
        if row["kind"] not in ACTIVE:
            return cls(row["kind"])
        before = tuple(ClassRegistry.from_json(row["before"]).entries)
        alike = {name: (known, shift) for name, (known, shift) in row["alike"].items()}
        return cls(**{**row, "before": before, "declared": tuple(row["declared"]), "alike": alike})
