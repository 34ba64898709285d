"""Runs that differ only in their seed, and the names of such groups."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError, unknown_name
from fedwild.results.comparison.reading import FinishedRun

METHOD_NAME = "method.name"


@dataclass(frozen=True)
class Group:
    """One row: the runs with the same settings, by seed."""

    name: str
    runs: dict[int, FinishedRun]
    named_by: tuple[str, ...] = ()
    """The settings that the name shows."""

    @property
    def settings(self) -> dict[str, Any]:
        return _settings(self.runs)

    def values(self, figure: str) -> dict[int, float]:
        """Return a figure by seed, where it is defined."""
        given = {seed: run.figures.get(figure) for seed, run in self.runs.items()}
        return {seed: value for seed, value in given.items() if value is not None}


def _settings(group: Mapping[int, FinishedRun]) -> dict[str, Any]:
    """Return the settings that all runs of a group share."""
    return next(iter(group.values())).settings


def grouped(runs: Iterable[FinishedRun]) -> tuple[list[dict[int, FinishedRun]], list[FinishedRun]]:
    """Return the runs with the same settings by seed, and the runs that repeat another one.

    A run with the same settings and seed as another one gives the same result, so it must not count as another seed.
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
    """Return the settings whose values differ between the groups that have them, the method first.

    A setting that only some groups have, such as a setting of their method, does not count.
    """
    seen: dict[str, set[str]] = {}
    for group in groups:
        for key, value in _settings(group).items():
            seen.setdefault(key, set()).add(json.dumps(value, sort_keys=True))
    keys = [key for key, values in seen.items() if len(values) > 1]
    return sorted(keys, key=lambda key: key != METHOD_NAME)


def named(groups: Sequence[Mapping[int, FinishedRun]], by: Sequence[str] = ()) -> list[Group]:
    """Return groups named by the settings `by`, or by all settings that differ.

    Groups to which `by` would give the same name are also named by what differs between them.
    """
    keys = [full_key(key, groups) for key in by] or differing(groups) or [METHOD_NAME]
    settings = [_settings(group) for group in groups]
    names = [phrase(own, keys) for own in settings]
    named_by = []
    for name in names:
        alike = [other for other, theirs in zip(groups, names, strict=True) if theirs == name]
        named_by.append((*keys, *(key for key in differing(alike) if key not in keys)))
    final = distinct_names(phrases(list(zip(settings, named_by, strict=True))), settings)
    return [Group(name, dict(group), own) for name, group, own in zip(final, groups, named_by, strict=True)]


def distinct_names(names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Add to equal names the settings that only some of their groups have.

    Such settings occur if an older version of fedwild had fewer of them, or for a user's own network.
    """
    final = []
    for name, own in zip(names, settings, strict=True):
        alike = [other for other, theirs in zip(settings, names, strict=True) if theirs == name]
        partly = sorted({key for some in alike for key in some if any(key not in other for other in alike)})
        more = [f"{key}={plain(own[key]) if key in own else 'unset'}" for key in partly] if len(alike) > 1 else []
        final.append(" ".join([name, *more]))
    return final


def labelled(runs: Iterable[FinishedRun], labels: Mapping[Path, str], named_by: Iterable[str]) -> list[Group]:
    """Return groups with given names, by the path of each run; the names show these settings."""
    groups: dict[str, dict[int, FinishedRun]] = {}
    for run in runs:
        groups.setdefault(labels[run.path], {})[run.seed] = run
    return [Group(label, dict(sorted(group.items())), tuple(named_by)) for label, group in groups.items()]


def full_key(key: str, groups: Sequence[Mapping[int, FinishedRun]]) -> str:
    """Return the key of a setting as typed after --by; `method` is short for `method.name`."""
    known = {known for group in groups for known in _settings(group)}
    full = key if key in known else f"{key}.name"
    if key == "seed":
        raise UserError("--by seed is not allowed: a row is the mean over seeds.")
    if full not in known:
        raise unknown_name("--by", key, known)
    return full


def phrase(settings: Mapping[str, Any], keys: Iterable[str], full_paths: bool = False) -> str:
    """Return 'method=fedavg method.lr=0.1', without settings that do not exist."""
    return " ".join(
        f"{key.removesuffix('.name')}={plain(settings[key], full_paths)}" for key in keys if key in settings
    )


def phrases(rows: Sequence[tuple[Mapping[str, Any], Sequence[str]]]) -> list[str]:
    """Return a phrase for each row's settings and keys, with full paths where short ones give equal names."""
    short = [phrase(settings, keys) for settings, keys in rows]
    return [
        phrase(*row, full_paths=True) if short.count(name) > 1 else name for row, name in zip(rows, short, strict=True)
    ]


def plain(value: Any, full_path: bool = False) -> str:
    """Return a setting's value for a name; of a path only the last part, unless the full path is needed."""
    if isinstance(value, str):
        return Path(value).name if value.startswith("/") and not full_path else value
    # TOML has dates, JSON does not.
    return "none" if value is None else json.dumps(value, ensure_ascii=False, default=str)
