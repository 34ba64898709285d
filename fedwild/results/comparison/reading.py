"""The settings and figures of finished runs. Only JSON is read, so that hundreds of runs take a moment."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError
from fedwild.runs.json_files import read_facts, read_result

COSTS = ("seconds", "bytes_up", "bytes_down")


@dataclass(frozen=True)
class FinishedRun:
    """What a comparison uses of a run."""

    path: Path
    seed: int
    settings: dict[str, Any]
    """The settings that the result depends on, without the seed: `section.key` = value."""
    data: str | None
    """The fingerprint of its data."""
    figures: dict[str, float | None]
    """Every number of the result, None if undefined; those of a client or domain as `by.NAME.FIGURE`."""


@dataclass(frozen=True)
class Found:
    """The runs in some folders."""

    finished: tuple[FinishedRun, ...]
    unfinished: tuple[Path, ...]


def find_runs(places: Iterable[Path]) -> Found:
    """Return the runs that the places are or contain, each once, ordered by place and then by settings."""
    finished: dict[Path, FinishedRun] = {}
    unfinished: dict[Path, Path] = {}
    for place in places:
        folders = list(run_folders(place))
        if not folders:
            raise UserError(f"folder {str(place)!r} contains no runs.")
        done = [folder for folder in folders if (folder / "result.json").exists()]
        unfinished |= {folder.resolve(): folder for folder in folders if folder not in done}
        for run in sorted(map(read_run, done), key=order_of):
            finished.setdefault(run.path.resolve(), run)
    return Found(tuple(finished.values()), tuple(unfinished.values()))


def run_folders(place: Path) -> Iterator[Path]:
    """Yield the place itself if it is a run folder, otherwise all run folders below it."""
    if not place.is_dir():
        raise UserError(f"run folder {str(place)!r} {'is not a folder' if place.exists() else 'does not exist'}.")
    for folder, inner, files in os.walk(place):
        if "run.json" in files:
            inner.clear()
            yield Path(folder)
        # Hidden folders are runs that are being created.
        inner[:] = sorted(name for name in inner if not name.startswith("."))


def read_run(folder: Path) -> FinishedRun:
    """Return a finished run."""
    facts, result = read_facts(folder), read_result(folder)
    if result is None:
        raise UserError(f"run {str(folder)!r} has no result.json: it is unfinished.")
    settings = facts.get("config")
    if not isinstance(settings, dict) or not isinstance(settings.get("seed"), int):
        raise UserError(f"{str(folder / 'run.json')!r} has no settings of the run: it cannot be compared.")
    return FinishedRun(folder, settings["seed"], _flat(settings), facts.get("data"), figures_of(result))


def order_of(run: FinishedRun) -> tuple[Any, ...]:
    """Return a key that sorts runs by their settings, and numbers by size."""
    ranks = {
        key: (0, value, "") if isinstance(value, (int, float)) else (1, 0, json.dumps(value, sort_keys=True))
        for key, value in run.settings.items()
    }
    return list(ranks.items()), run.seed, run.path


def figures_of(result: dict[str, Any]) -> dict[str, float | None]:
    """Return every number of a result by name."""
    plain = {key: result[key] for key in (*COSTS, "rounds", "clients")}
    by = {f"by.{who}.{key}": value for who, own in result["by"].items() for key, value in own.items()}
    return {**result["metrics"], **plain, **by}


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    sections = {key: table for key, table in settings.items() if isinstance(table, dict)}
    return {f"{section}.{key}": value for section, table in sections.items() for key, value in table.items()}
