"""The roles of classes: known, novel (unlabelled) and unknown (test only)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedwild.core.errors import UserError, unknown_name
from fedwild.core.text import count
from fedwild.data.settings import DataSettings

DEFAULT_KNOWN = {"digits": 6}  # so that the quick start has unknown classes


class ClassRoles(NamedTuple):
    """Class names by role; a class without a role is not used."""

    known: tuple[str, ...]
    novel: tuple[str, ...]
    unknown: tuple[str, ...]


def choose_classes(classes: tuple[str, ...], dataset_name: str, data: DataSettings) -> ClassRoles:
    """Return the classes of each role: named classes first, then counts from the remaining ones."""
    named = {role: value for role in ClassRoles._fields if isinstance(value := getattr(data, role), list)}
    _check_names(classes, named)
    given = {name for names in named.values() for name in names}
    free = [name for name in classes if name not in given]
    if data.class_seed is not None:
        free = [free[i] for i in np.random.default_rng(data.class_seed).permutation(len(free))]
    counts = _counts(len(free), dataset_name, data)
    if sum(counts.values()) > len(free):
        asked_for = ", ".join(f"data.{role} = {number}" for role, number in counts.items() if number)
        raise UserError(
            f"{asked_for} is not allowed: only {len(free)} of {len(classes)} classes are available for these counts."
        )
    chosen: dict[str, tuple[str, ...]] = {role: tuple(names) for role, names in named.items()}
    for role, number in counts.items():
        taken, free = free[:number], free[number:]
        chosen[role] = tuple(name for name in classes if name in set(taken))
    if data.stages and sum(data.stages) != len(chosen["novel"]):
        raise UserError(
            f"data.stages = {data.stages} is not allowed: it sums to {sum(data.stages)}, but data.novel gives "
            f"{count(len(chosen['novel']), 'novel class', 'novel classes')}."
        )
    return ClassRoles(**chosen)


def _check_names(classes: tuple[str, ...], named: dict[str, list[str]]) -> None:
    owner: dict[str, str] = {}
    for role, names in named.items():
        for name in names:
            if name not in classes:
                raise unknown_name(f"data.{role}: class", name, classes)
            if name in owner:
                raise UserError(
                    f"class {name!r} is in both data.{owner[name]} and data.{role}: remove it from one of them."
                )
            owner[name] = role


def _counts(free: int, dataset_name: str, data: DataSettings) -> dict[str, int]:
    """Return how many free classes each role takes, for roles that are given as counts."""
    counts: dict[str, int] = {}
    novel = data.novel if isinstance(data.novel, int) else 0
    unknown = data.unknown if isinstance(data.unknown, int) else 0
    if data.known == "all":
        counts["known"] = free
    elif isinstance(data.known, int):
        counts["known"] = data.known
    elif data.known is None:
        rest = free - novel - unknown
        if rest < 1:
            raise UserError(
                f"data.novel = {data.novel!r} and data.unknown = {data.unknown!r} leave no class to be known."
            )
        counts["known"] = min(rest, DEFAULT_KNOWN.get(dataset_name, rest))
    if isinstance(data.novel, int):
        counts["novel"] = data.novel
    if isinstance(data.unknown, int):
        counts["unknown"] = data.unknown
    elif data.unknown == "rest":
        counts["unknown"] = max(0, free - sum(counts.values()))
    return counts
