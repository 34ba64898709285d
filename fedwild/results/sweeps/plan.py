"""The runs of a sweep: every combination is checked before the first run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError
from fedwild.core.layers import Table, merge
from fedwild.results.batch import Planned
from fedwild.results.comparison.notes import some
from fedwild.results.sweeps.axes import Axes, Combination
from fedwild.runs.config import Config, changes, resolve
from fedwild.runs.folder import RunFolder

FILLED_IN = {"data": {"name", "known", "newcomers"}, "federation": {"clients", "start_from"}}
"""Settings that the data determines, or that become full paths, when a run begins."""


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
    """All runs of a sweep in order: all combinations with one seed, then with the next."""

    folder: Path
    axes: Axes
    seeds: tuple[int, ...]
    runs: tuple[SweepRun, ...]

    def first_runs(self) -> list[SweepRun]:
        """Return one run for each combination."""
        return [run for run in self.runs if run.seed == self.seeds[0]]


def planned_sweep(folder: Path, base: Table, axes: Axes, fixed: Table) -> Sweep:
    """Return the runs of a config with these axes; `fixed` are settings that override the config.

    One error reports the problems of all combinations.
    """
    combinations = list(axes.combinations())
    configs = each_checked(combinations, lambda item: resolve(base, merge(item.layer, fixed)))
    seeds = axes.seeds or (configs[0].seed,)
    reject_duplicates(combinations, configs)
    if len(combinations) == 1:
        combinations = [replace(combinations[0], label=combinations[0].label or f"method={configs[0].method.name}")]
    runs = []
    for seed in seeds:
        for combination, config in zip(combinations, configs, strict=True):
            # Named by settings, not by position in the grid, so that a larger grid finds the runs again.
            method = re.sub(r"[^\w.+-]+", "_", config.method.name)
            place = folder / f"{method}-{config.digest()}-seed{seed}"
            planned = Planned(f"{combination.label} seed {seed}", replace(config, seed=seed), place)
            runs.append(SweepRun(combination, seed, planned))
    return Sweep(folder, axes, seeds, tuple(runs))


def each_checked(items: Sequence[Combination], check: Callable[[Combination], Any]) -> list[Any]:
    """Return what the check returns for each; one error has all problems, with the combinations that have them."""
    results, problems = [], dict[str, list[str]]()
    for item in items:
        try:
            results.append(check(item))
        except UserError as error:
            for problem in error.problems:
                problems.setdefault(problem, []).append(item.label)
    if problems:
        raise UserError(
            *(text if len(whose) == len(items) else f"{some(whose)}: {text}" for text, whose in problems.items())
        )
    return results


def reject_duplicates(combinations: Sequence[Combination], configs: Sequence[Config]) -> None:
    """Reject two combinations with the same settings, which would be the same runs."""
    seen: dict[str, str] = {}
    for combination, config in zip(combinations, configs, strict=True):
        key = config.digest()
        if key in seen:
            raise UserError(f"{seen[key]!r} and {combination.label!r} are the same settings: remove one of them.")
        seen[key] = combination.label


def check_kept(sweep: Sweep) -> None:
    """Reject folders that contain other runs than those planned."""
    wrong = []
    for run in sweep.runs:
        if not run.folder.exists():
            continue
        then, now = RunFolder.open(run.folder).facts().get("config"), run.planned.config.decisive()
        other = changes(_comparable(then or {}, now), _comparable(now, now))
        if other:
            wrong.append(f"{str(run.folder)!r} contains another run: {'; '.join(other)}. Choose another --out.")
    if wrong:
        raise UserError(*wrong)


def _comparable(table: Mapping[str, Any], planned: Mapping[str, Any]) -> Table:
    """Return the planned settings of a table, without those that are filled in when a run begins."""
    kept: Table = {"seed": table.get("seed")}
    for section, settings in planned.items():
        if isinstance(settings, dict):
            given = table.get(section, {})
            open_keys = {key for key, value in settings.items() if value is None} | FILLED_IN.get(section, set())
            kept[section] = {key: given.get(key) for key in settings if key not in open_keys}
    # Convert tuples to lists, as in the file.
    plain: Table = json.loads(json.dumps(kept))
    return plain
