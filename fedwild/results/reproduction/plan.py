"""From a paper's table to the runs that give our figures for it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedwild.results.batch import Planned
from fedwild.runs.config import Config, resolve, setting_layers
from fedwild.core.errors import UserError
from fedwild.results.papers import Cell, Table
from fedwild.results.reproduction.scaling import scaled
from fedwild.results.reproduction.stand_in import stood_in


@dataclass(frozen=True)
class Entry:
    """A cell of the paper, and the runs over which our figure is the mean; none if it cannot be had."""

    cell: Cell
    runs: tuple[Planned, ...] = ()
    stand_in: str | None = None
    """What data runs in the place of the paper's."""


@dataclass(frozen=True)
class Plan:
    """All that reproducing a table takes."""

    table: Table
    scale: float
    changed: tuple[str, ...]
    """Settings that the user changed."""
    entries: tuple[Entry, ...]

    @property
    def runs(self) -> list[Planned]:
        """Each once, in the table's order: many cells are figures of the same run."""
        return list({run.folder: run for entry in self.entries for run in entry.runs}.values())

    @property
    def reasons(self) -> dict[str, int]:
        """What is waited for, and how many cells wait for it."""
        counts: dict[str, int] = {}
        for entry in self.entries:
            if not entry.runs and entry.cell.waiting:
                counts[entry.cell.waiting] = counts.get(entry.cell.waiting, 0) + 1
        return counts


def plan(
    table: Table,
    out: Path,
    scale: float = 1.0,
    seeds: Sequence[int] = (),
    stand_in: bool = False,
    settings: Sequence[str] | Mapping[str, Any] = (),
) -> Plan:
    """Every cell with its runs, all settings checked. Folders are named by what is run, so tables share runs.

    Without seeds, each cell has the one that its settings name. `stand_in` lets other data run where the paper's is
    missing. `settings` win over the paper's and over the scale.
    """
    layers = setting_layers(settings)
    changed = tuple(settings) if not isinstance(settings, Mapping) else (json.dumps(settings),)
    entries = [_entry(cell, out, scale, seeds, stand_in, layers) for cell in table.cells]
    return Plan(table, scale, changed, tuple(_labelled(entries)))


def _entry(
    cell: Cell, out: Path, scale: float, seeds: Sequence[int], stand_in: bool, layers: list[Mapping[str, Any]]
) -> Entry:
    said, instead = cell.settings, None
    if said is None or (cell.waiting is not None and not stand_in):
        return Entry(cell)
    if stand_in:
        said, instead = stood_in(said)
    try:
        config = resolve(scaled(resolve(said), scale).table(), *layers)
    except UserError as error:
        where = ", ".join(f"{key}={value}" for key, value in cell.keys.items())
        raise UserError(*(f"{where}: {problem}" for problem in error.problems)) from None
    configs = [resolve(config.table(), {"seed": seed}) for seed in seeds] or [config]
    return Entry(cell, tuple(_planned(config, out) for config in configs), instead)


def _planned(config: Config, out: Path) -> Planned:
    """A run whose folder says in words, and exactly by a hash, what it is."""
    names = "+".join(Path(name).stem for name in config.data.names)
    stem = re.sub(r"[^\w.+-]+", "_", f"{config.method.name}-{names}")
    return Planned(stem, config, out / f"{stem}-{config.digest()}-seed{config.seed}")


def _labelled(entries: Sequence[Entry]) -> list[Entry]:
    """Runs called by what all cells that they serve have in common, such as 'mnist, c2, fedov, seed 0'."""
    common: dict[Path, dict[str, str]] = {}
    for entry in entries:
        for run in entry.runs:
            before = common.setdefault(run.folder, dict(entry.cell.keys))
            common[run.folder] = {key: value for key, value in before.items() if entry.cell.keys.get(key) == value}
    labels = {folder: _label(keys) for folder, keys in common.items()}
    return [replace(entry, runs=tuple(_called(run, labels) for run in entry.runs)) for entry in entries]


def _label(keys: Mapping[str, str]) -> str:
    return ", ".join(value for key, value in keys.items() if key != "seed")


def _called(run: Planned, labels: Mapping[Path, str]) -> Planned:
    """With its label and seed; where several settings have the same label, also their digest."""
    mine, seed = labels[run.folder], f"-seed{run.config.seed}"
    twins = sum(label == mine and folder.name.endswith(seed) for folder, label in labels.items())
    which = f" ({run.config.digest()})" if twins > 1 else ""
    return replace(run, label=f"{mine}, seed {run.config.seed}{which}")
