"""The roles of classes: known, novel (unlabelled) and unknown (test only)."""

from __future__ import annotations

from collections.abc import Mapping
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


def choose_classes(
    classes: tuple[str, ...],
    dataset_name: str,
    data: DataSettings,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> ClassRoles:
    """Return the classes of each role: named classes first, then counts from the remaining ones.

    `seed` is that of the run, and `sizes` has the number of training samples of each class, where that is known.
    """
    named = {role: value for role in ClassRoles._fields if isinstance(value := getattr(data, role), list)}
    _check_names(classes, named)
    given = {name for names in named.values() for name in names}
    class_seed = seed if data.class_seed == "run" else data.class_seed
    rng = None if class_seed is None else np.random.default_rng(class_seed)
    free = _shuffled([name for name in classes if name not in given], rng)
    if data.known_among is not None:
        known = _known_from_largest(free, data, sizes)
        free = known + _shuffled([name for name in free if name not in known], rng)
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


def _shuffled(names: list[str], rng: np.random.Generator | None) -> list[str]:
    """Return the names in random order; in their own order without a generator."""
    return names if rng is None else [names[i] for i in rng.permutation(len(names))]


def _known_from_largest(free: list[str], data: DataSettings, sizes: Mapping[str, int] | None) -> list[str]:
    """Return the first `data.known` classes that are among the `data.known_among` largest ones."""
    if not isinstance(data.known, int):
        raise UserError(f"data.known_among = {data.known_among} needs a number as data.known, not {data.known!r}.")
    if data.known_among is None or data.known > data.known_among:
        raise UserError(f"data.known_among = {data.known_among} must be at least data.known = {data.known}.")
    if sizes is None:
        raise UserError(
            f"data.known_among = {data.known_among} is not allowed with data at sites: their sizes are not known here."
        )
    # Of two equal classes, the first by name counts as larger.
    largest = sorted(free, key=lambda name: (-sizes[name], name))[: data.known_among]
    return [name for name in free if name in largest][: data.known]


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
