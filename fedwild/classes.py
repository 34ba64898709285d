"""The class registry: which classes the federation knows, by name, and where each came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from typing import Any

UNKNOWN_NAME = "unknown"
"""The answer for what belongs to none of the classes."""
MOST_CHARACTERS = 100
"""No class's name is longer."""
NOVEL = "novel"
"""Discovered classes are called novel-1, novel-2 ... until somebody names them; also their origin in the registry."""


@dataclass(frozen=True)
class ClassEntry:
    """One class: its name, who brought it, the round since which it is known, and what it was found in."""

    name: str
    origin: str
    since: int
    stage: int = 0
    """The stage in which it was discovered, counted from 1; 0 for a class that came with its name."""
    samples: dict[str, int] = field(default_factory=dict)
    """How many unlabelled samples of each client it was discovered in."""


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

    @property
    def novel(self) -> list[ClassEntry]:
        """The classes that were discovered, whatever they are called by now."""
        return [entry for entry in self.entries if entry.origin == NOVEL]

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def add(self, name: str, origin: str, since: int, stage: int = 0, samples: Mapping[str, int] | None = None) -> int:
        """The id of `name`, which is added at the end if it is new: equal names meet in one class."""
        if name not in self:
            self.entries.append(ClassEntry(name, origin, since, stage, dict(samples or {})))
        return self.names.index(name)

    def free_name(self, stem: str) -> str:
        """The first of stem-1, stem-2 ... that is not taken."""
        return next(name for number in count(1) if (name := f"{stem}-{number}") not in self)

    def rename(self, old: str, new: str) -> None:
        """Give a class another name; its id stays."""
        place = self.names.index(old)
        self.entries[place] = replace(self.entries[place], name=new)

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self.entries]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> ClassRegistry:
        return cls([ClassEntry(**row) for row in rows])
