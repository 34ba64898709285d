"""Which classes are known, novel (unlabelled) and unknown (test only)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedwild.data.settings import DataSettings
from fedwild.core.errors import UserError, unknown_name

DEFAULT_KNOWN = {"digits": 6}  # the quick start has something unknown to find


class ClassRoles(NamedTuple):
    """Class names by role; a class in none of them is left out altogether."""

    known: tuple[str, ...]
    novel: tuple[str, ...]
    unknown: tuple[str, ...]


def choose_classes(classes: tuple[str, ...], dataset_name: str, data: DataSettings) -> ClassRoles:
    """Resolve names and counts: named classes are taken first, counts then take from what is left."""
    named = {role: value for role in ClassRoles._fields if isinstance(value := getattr(data, role), list)}
    _check_names(classes, named)
    free = _free_classes(classes, named, data.class_seed)
    counts = _counts(len(free), dataset_name, data)
    asked = sum(counts.values())
    if asked > len(free):
        wish = ", ".join(f"data.{role}={count}" for role, count in counts.items() if count)
        raise UserError(f"{wish}: together more than the {len(free)} of {len(classes)} classes that are left for them.")
    chosen: dict[str, tuple[str, ...]] = {role: tuple(names) for role, names in named.items()}
    for role, count in counts.items():
        taken, free = free[:count], free[count:]
        chosen[role] = tuple(name for name in classes if name in set(taken))
    if data.stages and sum(data.stages) != len(chosen["novel"]):
        raise UserError(
            f"data.stages={data.stages} is not allowed: it adds up to {sum(data.stages)}, and {len(chosen['novel'])} "
            "classes are novel (data.novel)."
        )
    return ClassRoles(**chosen)


def _check_names(classes: tuple[str, ...], named: dict[str, list[str]]) -> None:
    owner: dict[str, str] = {}
    for role, names in named.items():
        for name in names:
            if name not in classes:
                raise unknown_name(f"data.{role}: class", name, classes)
            if name in owner:
                raise UserError(f"class {name!r} is both in data.{owner[name]} and in data.{role}: keep one of them.")
            owner[name] = role


def _free_classes(classes: tuple[str, ...], named: dict[str, list[str]], seed: int | None) -> list[str]:
    """Classes nobody named, in order or shuffled by the seed."""
    taken = {name for names in named.values() for name in names}
    free = [name for name in classes if name not in taken]
    if seed is None:
        return free
    return [free[i] for i in np.random.default_rng(seed).permutation(len(free))]


def _counts(free: int, dataset_name: str, data: DataSettings) -> dict[str, int]:
    """How many of the free classes each role takes that was not given by names."""
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
            raise UserError(f"data.novel={data.novel!r} and data.unknown={data.unknown!r} leave no class to be known.")
        counts["known"] = min(rest, DEFAULT_KNOWN.get(dataset_name, rest))
    if isinstance(data.novel, int):
        counts["novel"] = data.novel
    if isinstance(data.unknown, int):
        counts["unknown"] = data.unknown
    elif data.unknown == "rest":
        counts["unknown"] = max(0, free - sum(counts.values()))
    return counts
