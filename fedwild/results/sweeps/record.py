"""The files of a sweep beside its runs: sweep.json and runs.csv."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError
from fedwild.core.storage import write_atomically
from fedwild.results.comparison import FinishedRun, read_run
from fedwild.results.comparison.grouping import plain
from fedwild.results.sweeps.plan import Sweep, SweepRun

FORMAT = 1


class Record:
    """The state of a sweep's runs, written to its folder."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._finished: dict[Path, FinishedRun] = {}

    def finished(self, run: SweepRun) -> FinishedRun | None:
        """Return a run's figures if it is finished; they are read once."""
        if run.folder not in self._finished and (run.folder / "result.json").exists():
            self._finished[run.folder] = read_run(run.folder)
        return self._finished.get(run.folder)

    def state(self, run: SweepRun, failures: Mapping[str, UserError]) -> str:
        """Return finished, failed, unfinished or missing."""
        if self.finished(run) is not None:
            return "finished"
        if run.planned.label in failures:
            return "failed"
        return "unfinished" if run.folder.exists() else "missing"

    def rows(self, failures: Mapping[str, UserError]) -> list[dict[str, Any]]:
        """Return the settings, seed, state and folder of each run."""
        return [
            {
                "label": run.combination.label,
                "settings": run.combination.varied,
                "seed": run.seed,
                "state": self.state(run, failures),
                "folder": str(run.folder),
                "problem": str(failures.get(run.planned.label, "")) or None,
            }
            for run in self.sweep.runs
        ]

    def write_plan(self) -> None:
        """Write sweep.json, which describes the sweep."""
        sweep = self.sweep
        rows = [
            {
                "label": first.combination.label,
                "settings": first.combination.varied,
                "runs": {str(run.seed): run.folder.name for run in sweep.runs if run.combination is first.combination},
            }
            for first in sweep.first_runs()
        ]
        content = {
            "format": FORMAT,
            "seeds": list(sweep.seeds),
            "grid": sweep.axes.grid,
            "variants": sweep.axes.variants,
            "rows": rows,
        }
        _write(sweep.folder / "sweep.json", json.dumps(content, indent=2, default=str) + "\n")

    def check_only_adds(self) -> None:
        """Reject a sweep that does not have all runs of an earlier one in its folder."""
        path = self.sweep.folder / "sweep.json"
        if not path.exists():
            return
        here = {run.folder.name for run in self.sweep.runs}
        for row in _earlier_rows(path):
            for seed, name in row["runs"].items():
                if name not in here:
                    raise UserError(
                        f"--out {str(self.sweep.folder)!r} contains a sweep with {row['label']!r}, seed {seed}, which "
                        "this sweep lacks with the same settings: extend the old sweep, or choose another --out."
                    )

    def write_runs(self, failures: Mapping[str, UserError]) -> None:
        """Write runs.csv, with a row for each run."""
        keys = list(dict.fromkeys(key for run in self.sweep.runs for key in run.combination.varied))
        done = {run.folder: self.finished(run) for run in self.sweep.runs}
        figures = list(dict.fromkeys(key for run in done.values() if run for key in run.figures if "." not in key))
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["label", *keys, "seed", "state", *figures, "folder", "problem"])
        for run, row in zip(self.sweep.runs, self.rows(failures), strict=True):
            varied = [plain(row["settings"][key]) if key in row["settings"] else "" for key in keys]
            result = done[run.folder]
            numbers = [_number(result.figures.get(key) if result else None) for key in figures]
            problem = " ".join((row["problem"] or "").split())
            writer.writerow([row["label"], *varied, run.seed, row["state"], *numbers, run.folder.name, problem])
        _write(self.sweep.folder / "runs.csv", stream.getvalue())


def _earlier_rows(path: Path) -> list[dict[str, Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows: list[dict[str, Any]] = content["rows"]
        assert all(isinstance(row["runs"], dict) and "label" in row for row in rows)
        return rows
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        raise UserError(f"{str(path)!r} is damaged: delete it and repeat the command, which keeps the runs.") from None


def _number(value: float | None) -> str:
    return "" if value is None else repr(value)


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text.encode(), durable=False, private=False)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written: {error.strerror or error}.") from None
