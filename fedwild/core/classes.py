"""The class registry: the classes that the federation knows, by name, with the origin of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

from fedwild.core.names import plain_name

NOVEL = "novel"
"""The stem of the names novel-1, novel-2 ... of discovered classes until they are named; also their origin."""


@dataclass(frozen=True)
class ClassEntry:
    """One class: its name, its origin, the round in which it was added, and how it was discovered."""

    name: str
    origin: str
    since: int
    stage: int = 0
    """The stage of its discovery, counted from 1; 0 for a class that was not discovered."""
    samples: dict[str, int] = field(default_factory=dict)
    """The number of unlabelled samples, by client, in which it was discovered."""


@dataclass
class ClassRegistry:
    """Classes in the order of the head's rows. The id of a class is its position in this list."""

    entries: list[ClassEntry] = field(default_factory=list)

    @classmethod
    def of(cls, names: Iterable[str], origin: str = "known") -> ClassRegistry:
        """Return a registry with these names, all of one origin."""
        registry = cls()
        for name in names:
            registry.add(name, origin, since=0)
        return registry

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    @property
    def novel(self) -> list[ClassEntry]:
        """The discovered classes, under their current names."""
        return [entry for entry in self.entries if entry.origin == NOVEL]

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def add(self, name: str, origin: str, since: int, stage: int = 0, samples: Mapping[str, int] | None = None) -> int:
        """Return the id of the class `name`; it is appended if it is not in the registry yet."""
        if name not in self:
            self.entries.append(ClassEntry(name, origin, since, stage, dict(samples or {})))
        return self.names.index(name)

    def free_name(self, stem: str) -> str:
        """Return the first of stem-1, stem-2 ... that is not taken, whatever its case."""
        taken = {plain_name(name) for name in self.names}
        return next(name for number in count(1) if plain_name(name := f"{stem}-{number}") not in taken)

    def rename(self, old: str, new: str) -> None:
        """Rename a class; its id does not change."""
        place = self.names.index(old)
        self.entries[place] = replace(self.entries[place], name=new)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self.entries]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> ClassRegistry:
        return cls([ClassEntry(**row) for row in rows])
