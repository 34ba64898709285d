"""The class registry: which classes the federation knows, by name, and where each came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

UNKNOWN_NAME = "unknown"
"""The answer for what belongs to none of the classes."""


@dataclass(frozen=True)
class ClassEntry:
    """One class: its name, who brought it, and the round since which it is known."""

    name: str
    origin: str
    since: int


@dataclass
class ClassRegistry:
    """Names in the order of the head's rows. Ids are positions here and nowhere else."""

    entries: list[ClassEntry] = field(default_factory=list)

    @classmethod
    def of(cls, names: Iterable[str], origin: str = "known") -> ClassRegistry:
        registry = cls()
        for name in names:
            registry.add(name, origin, since=0)
        return registry

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def add(self, name: str, origin: str, since: int) -> int:
        """The id of `name`, which is added at the end if it is new: equal names meet in one class."""
        if name not in self:
            self.entries.append(ClassEntry(name, origin, since))
        return self.names.index(name)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self.entries]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> ClassRegistry:
        return cls([ClassEntry(str(row["name"]), str(row["origin"]), int(row["since"])) for row in rows])
