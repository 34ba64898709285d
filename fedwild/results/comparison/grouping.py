"""Runs that differ in nothing but their seed, and what to call them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwild.results.comparison.reading import FinishedRun
from fedwild.core.errors import UserError, unknown_name

FIRST = "method.name"


@dataclass(frozen=True)
class Group:
    """One row: the runs of some settings by their seed."""

    name: str
    runs: dict[int, FinishedRun]
    told: tuple[str, ...] = ()
    """The settings that the name tells of."""

    @property
    def settings(self) -> dict[str, Any]:
        return next(iter(self.runs.values())).settings

    def values(self, figure: str) -> dict[int, float]:
        """A figure by seed, where it is defined."""
        given = {seed: run.figures.get(figure) for seed, run in self.runs.items()}
        return {seed: value for seed, value in given.items() if value is not None}


def grouped(runs: Iterable[FinishedRun]) -> tuple[list[dict[int, FinishedRun]], list[FinishedRun]]:
    """The runs of the same settings by seed, in order of first appearance; and runs that only repeat another.

    The same settings with the same seed are the same run again: counted twice, it would pass for another seed.
    """
    groups: dict[str, dict[int, FinishedRun]] = {}
    repeated = []
    for run in runs:
        group = groups.setdefault(json.dumps(run.settings, sort_keys=True), {})
        if run.seed in group:
            repeated.append(run)
        else:
            group[run.seed] = run
    return [dict(sorted(group.items())) for group in groups.values()], repeated


def differing(groups: Iterable[Mapping[int, FinishedRun]]) -> list[str]:
    """The settings that are not equal in all groups that have them, the method first.

    A setting that only some groups have, such as one of their method, is no difference: the method's name tells.
    """
    seen: dict[str, set[str]] = {}
    for group in groups:
        for key, value in next(iter(group.values())).settings.items():
            seen.setdefault(key, set()).add(json.dumps(value, sort_keys=True))
    keys = [key for key, values in seen.items() if len(values) > 1]
    return sorted(keys, key=lambda key: key != FIRST)


def named(groups: Sequence[Mapping[int, FinishedRun]], by: Sequence[str] = ()) -> list[Group]:
    """Groups called by the settings `by`, or by all that differ between them.

    Those that `by` alone would call the same also get what differs between them.
    """
    keys = [full_key(key, groups) for key in by] or differing(groups) or [FIRST]
    settings = [next(iter(group.values())).settings for group in groups]
    names = [phrase(own, keys) for own in settings]
    told = []
    for name in names:
        alike = [other for other, theirs in zip(groups, names, strict=True) if theirs == name]
        told.append((*keys, *(key for key in differing(alike) if key not in keys)))
    final = told_apart(phrases(list(zip(settings, told, strict=True))), groups)
    return [Group(name, dict(group), own) for name, group, own in zip(final, groups, told, strict=True)]


def told_apart(names: list[str], groups: Sequence[Mapping[int, FinishedRun]]) -> list[str]:
    """Names of which no two are equal: those that are get the settings that only some of their runs have.

    An older fedwild may have had fewer settings, and a network of one's own may be given some or not.
    """
    final, settings = [], [next(iter(group.values())).settings for group in groups]
    for name, own in zip(names, settings, strict=True):
        alike = [other for other, theirs in zip(settings, names, strict=True) if theirs == name]
        partly = sorted({key for some in alike for key in some if any(key not in other for other in alike)})
        more = [f"{key}={plain(own[key]) if key in own else 'unset'}" for key in partly] if len(alike) > 1 else []
        final.append(" ".join([name, *more]))
    return final


def labelled(runs: Iterable[FinishedRun], labels: Mapping[Path, str], told: Iterable[str]) -> list[Group]:
    """Groups that have names already, by the path of each run; the names tell of these settings."""
    groups: dict[str, dict[int, FinishedRun]] = {}
    for run in runs:
        groups.setdefault(labels[run.path], {})[run.seed] = run
    return [Group(label, dict(sorted(group.items())), tuple(told)) for label, group in groups.items()]


def full_key(key: str, groups: Sequence[Mapping[int, FinishedRun]]) -> str:
    """A setting's key as typed: `method` is short for `method.name`."""
    known = {known for group in groups for known in next(iter(group.values())).settings}
    full = key if key in known else f"{key}.name"
    if key == "seed":
        raise UserError("--by seed is not allowed: a row is the mean over seeds.")
    if full not in known:
        raise unknown_name("--by", key, known)
    return full


def phrase(settings: Mapping[str, Any], keys: Iterable[str], in_full: bool = False) -> str:
    """'method=fedavg method.lr=0.1'; settings that are not there are left out."""
    return " ".join(f"{key.removesuffix('.name')}={plain(settings[key], in_full)}" for key in keys if key in settings)


def phrases(rows: Sequence[tuple[Mapping[str, Any], Sequence[str]]]) -> list[str]:
    """A phrase for each row's settings and keys; rows that short paths would call the same get full ones."""
    short = [phrase(settings, keys) for settings, keys in rows]
    return [
        phrase(*row, in_full=True) if short.count(name) > 1 else name for row, name in zip(rows, short, strict=True)
    ]


def plain(value: Any, in_full: bool = False) -> str:
    """A setting's value in a name; of a path its last part, unless it is wanted in full."""
    if isinstance(value, str):
        return Path(value).name if value.startswith("/") and not in_full else value
    # A date is a value that TOML has and JSON has not.
    return "none" if value is None else json.dumps(value, ensure_ascii=False, default=str)
