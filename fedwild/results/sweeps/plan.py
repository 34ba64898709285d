"""The runs of a sweep: every combination resolved and checked before any of them begins."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwild.results.batch import Planned
from fedwild.results.comparison.notes import some
from fedwild.core.layers import Table, merge
from fedwild.runs.config import Config, changes, resolve
from fedwild.core.errors import UserError
from fedwild.runs.folder import RunFolder
from fedwild.results.sweeps.axes import Axes, Combination

FILLED_IN = {"data": {"name", "known", "newcomers"}, "federation": {"clients", "start_from"}}
"""Settings that the data decide, or that become full paths, when a run begins."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    combination: Combination
    seed: int
    planned: Planned

    @property
    def folder(self) -> Path:
        return self.planned.folder


@dataclass(frozen=True)
class Sweep:
    """All runs of a sweep, in the order in which they are done: all combinations with one seed, then the next seed."""

    folder: Path
    axes: Axes
    seeds: tuple[int, ...]
    runs: tuple[SweepRun, ...]

    def first_runs(self) -> list[SweepRun]:
        """One for each combination."""
        return [run for run in self.runs if run.seed == self.seeds[0]]


def planned_sweep(folder: Path, base: Table, axes: Axes, fixed: Table) -> Sweep:
    """The runs that axes make of a config; `fixed` are settings that win over the config's.

    All that is wrong with any combination is told at once.
    """
    combinations = list(axes.combinations())
    configs = each_checked(combinations, lambda item: resolve(base, merge(item.layer, fixed)))
    seeds = axes.seeds or (configs[0].seed,)
    refuse_twins(combinations, configs)
    if len(combinations) == 1:
        combinations = [replace(combinations[0], label=combinations[0].label or f"method={configs[0].method.name}")]
    runs = tuple(
        SweepRun(
            combination,
            seed,
            Planned(f"{combination.label} seed {seed}", replace(config, seed=seed), folder / folder_name(config, seed)),
        )
        for seed in seeds
        for combination, config in zip(combinations, configs, strict=True)
    )
    return Sweep(folder, axes, seeds, runs)


def each_checked(items: Sequence[Combination], check: Callable[[Combination], Any]) -> list[Any]:
    """What the check returns for each; all problems together, each with the combinations that have it."""
    results, problems = [], dict[str, list[str]]()
    for item in items:
        try:
            results.append(check(item))
        except UserError as error:
            for problem in error.problems:
                problems.setdefault(problem, []).append(item.label)
    if problems:
        everybody = len(items)
        raise UserError(
            *(text if len(whose) == everybody else f"{some(whose)}: {text}" for text, whose in problems.items())
        )
    return results


def refuse_twins(combinations: Sequence[Combination], configs: Sequence[Config]) -> None:
    """Two combinations with the same settings would be the same runs under two names."""
    seen: dict[str, str] = {}
    for combination, config in zip(combinations, configs, strict=True):
        key = config.digest()
        if key in seen:
            raise UserError(f"{seen[key]!r} and {combination.label!r} are the same settings: leave one of them out.")
        seen[key] = combination.label


def folder_name(config: Config, seed: int) -> str:
    """By settings, not by place in the grid: what is done is found again when the grid has grown."""
    method = re.sub(r"[^\w.+-]+", "_", config.method.name)
    return f"{method}-{config.digest()}-seed{seed}"


def check_kept(sweep: Sweep) -> None:
    """Refuse folders that hold other runs than those planned."""
    wrong = []
    for run in sweep.runs:
        if not run.folder.exists():
            continue
        then, now = RunFolder.open(run.folder).facts().get("config"), run.planned.config.decisive()
        other = changes(_comparable(then or {}, now), _comparable(now, now))
        if other:
            wrong.append(f"{str(run.folder)!r} holds another run: {'; '.join(other)}. Name another --out.")
    if wrong:
        raise UserError(*wrong)


def _comparable(table: Mapping[str, Any], planned: Mapping[str, Any]) -> Table:
    """Of a table, what is planned and not filled in as a run begins."""
    kept: Table = {"seed": table.get("seed")}
    for section, settings in planned.items():
        if isinstance(settings, dict):
            given = table.get(section, {})
            open_keys = {key for key, value in settings.items() if value is None} | FILLED_IN.get(section, set())
            kept[section] = {key: given.get(key) for key in settings if key not in open_keys}
    # Lists for tuples, as in the file.
    plain: Table = json.loads(json.dumps(kept))
    return plain
