"""The runs that reproduce a paper's table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError
from fedwild.data.sources import difference_from_catalogue
from fedwild.results.batch import Planned
from fedwild.results.papers import Cell, Measure, Table
from fedwild.results.papers.library import data_names
from fedwild.results.reproduction.fitting import scaled, scaled_round, with_generated, with_stand_in
from fedwild.runs.config import Config, resolve, setting_layers


@dataclass(frozen=True)
class Entry:
    """A cell of the paper, and the runs whose mean is our figure; no runs if it cannot be reproduced here."""

    cell: Cell
    runs: tuple[Planned, ...] = ()
    stand_in: str | None = None
    """Which data replaces the paper's."""
    members: tuple[Entry, ...] = ()
    """The entries that have the runs, if the cell is a mean over others."""
    earlier: tuple[Planned, ...] = ()
    """The runs that these start from, for each seed."""


@dataclass(frozen=True)
class Plan:
    """Everything needed to reproduce a table."""

    table: Table
    scale: float
    changed: tuple[str, ...]
    """Settings that the user changed."""
    entries: tuple[Entry, ...]

    @property
    def runs(self) -> list[Planned]:
        """The runs in the table's order, each once, after what it starts from; one run has figures of many cells."""
        return list({run.folder: run for entry in self.entries for run in (*entry.earlier, *entry.runs)}.values())

    @property
    def partial(self) -> list[str]:
        """How data sets of the runs differ in numbers of samples from the complete ones."""
        names = dict.fromkeys(name for run in self.runs for name in data_names(run.config.table()))
        return [text for name in names if (text := difference_from_catalogue(name))]

    @property
    def reasons(self) -> dict[str, int]:
        """What is missing, and the number of cells that need it."""
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
    """Return every cell with its runs, all settings checked. Folders are named by their settings, so tables share runs.

    Without seeds, each cell uses those of the paper, or else the seed of its settings. `stand_in` replaces missing data
    by other data. `settings` override the paper's and the scale.
    """
    layers = setting_layers(settings)
    changed = tuple(settings) if not isinstance(settings, Mapping) else (json.dumps(settings),)
    entries = [_entry(cell, out, scale, seeds, stand_in, layers) for cell in table.cells]
    return Plan(table, scale, changed, tuple(_labelled(entries)))


def _entry(
    cell: Cell, out: Path, scale: float, seeds: Sequence[int], stand_in: bool, layers: list[Mapping[str, Any]]
) -> Entry:
    if cell.parts:
        return _mean(cell, tuple(_entry(part, out, scale, seeds, stand_in, layers) for part in cell.parts))
    if cell.settings is None or (cell.waiting is not None and not stand_in):
        return Entry(cell)
    settings, renamed, instead = _available(cell.settings, stand_in)
    configs, earlier = _configs(cell, settings, scale, seeds, layers), []
    if cell.begins_with is not None:
        before = _available(cell.begins_with, stand_in)[0]
        earlier = [_planned(config, out) for config in _configs(cell, before, scale, seeds, layers)]
    return Entry(
        replace(cell, measure=_fitted(cell.measure, renamed, scale)),
        tuple(_planned(config, out, first) for config, first in zip_longest(configs, earlier)),
        instead,
        earlier=tuple(earlier),
    )


def _available(settings: Mapping[str, Any], stand_in: bool) -> tuple[dict[str, Any], dict[str, str], str | None]:
    """Return the settings with data that is available here, generated data by the name it replaces, and a text."""
    others = None
    if stand_in:
        settings, others = with_stand_in(settings)
    changed, generated = with_generated(settings)
    instead = [*([others] if others else []), *(f"{mine} for {name}" for name, mine in generated.items())]
    return changed, generated, "; ".join(instead) or None


def _configs(
    cell: Cell, settings: Mapping[str, Any], scale: float, seeds: Sequence[int], layers: list[Mapping[str, Any]]
) -> list[Config]:
    """Return the checked settings at this scale, for each seed. Errors name the cell."""
    try:
        config = resolve(scaled(resolve(settings), scale).table(), *layers)
    except UserError as error:
        where = ", ".join(f"{key}={value}" for key, value in cell.keys.items())
        raise UserError(*(f"{where}: {problem}" for problem in error.problems)) from None
    return [resolve(config.table(), {"seed": seed}) for seed in seeds or cell.seeds] or [config]


def _fitted(measure: Measure | None, renamed: Mapping[str, str], scale: float) -> Measure | None:
    """Return the measure with the domain that replaces the paper's, and with the round of a shortened run."""
    if measure is None:
        return None
    part = None if measure.part is None else renamed.get(measure.part, measure.part)
    return replace(measure, part=part, round=measure.round and scaled_round(measure.round, scale))


def _mean(cell: Cell, members: tuple[Entry, ...]) -> Entry:
    """Return the entry of a mean; it has runs only if all members have some."""
    if not all(member.runs for member in members):
        return Entry(cell)
    instead = dict.fromkeys(member.stand_in for member in members if member.stand_in)
    return Entry(cell, tuple(run for member in members for run in member.runs), "; ".join(instead) or None, members)


def _planned(config: Config, out: Path, earlier: Planned | None = None) -> Planned:
    """Return a run whose folder is named by method, data and a digest of all settings."""
    names = "+".join(Path(name).stem for name in config.data.names)
    stem = re.sub(r"[^\w.+-]+", "_", f"{config.method.name}-{names}")
    if earlier is not None:
        # The name of the earlier run, not its path: the digest depends neither on where the runs are nor on the seed.
        name = earlier.folder.name.removesuffix(f"-seed{config.seed}")
        config = resolve(config.table(), {"federation": {"start_from": name}})
    folder = out / f"{stem}-{config.digest()}-seed{config.seed}"
    if earlier is not None:
        config = resolve(config.table(), {"federation": {"start_from": str(earlier.folder)}})
    return Planned(stem, config, folder)


def _labelled(entries: Sequence[Entry]) -> list[Entry]:
    """Label runs by what all their cells have in common, such as 'mnist, c2, fedov, seed 0'."""
    common: dict[Path, dict[str, str]] = {}
    for one in (one for entry in entries for one in entry.members or [entry]):
        for run in (*one.earlier, *one.runs):
            before = common.setdefault(run.folder, dict(one.cell.keys))
            common[run.folder] = {key: value for key, value in before.items() if one.cell.keys.get(key) == value}
    labels = {
        folder: ", ".join(value for key, value in keys.items() if key != "seed") for folder, keys in common.items()
    }
    return [_entry_with_labels(entry, labels) for entry in entries]


def _entry_with_labels(entry: Entry, labels: Mapping[Path, str]) -> Entry:
    runs, earlier = (tuple(_with_label(run, labels) for run in own) for own in (entry.runs, entry.earlier))
    return replace(entry, runs=runs, earlier=earlier)


def _with_label(run: Planned, labels: Mapping[Path, str]) -> Planned:
    """Return the run with its label and seed, and with its digest where several settings share a label."""
    mine, seed = labels[run.folder], f"-seed{run.config.seed}"
    equal = sum(label == mine and folder.name.endswith(seed) for folder, label in labels.items())
    which = f" ({run.folder.name.removesuffix(seed).rpartition('-')[2]})" if equal > 1 else ""
    return replace(run, label=f"{mine}, seed {run.config.seed}{which}")
