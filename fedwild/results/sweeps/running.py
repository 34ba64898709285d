"""Running a sweep, and the files beside its runs: sweep.json, runs.csv and tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError, explain_os_errors
from fedwild.core.storage import write_atomically
from fedwild.display.progress import WorkDisplay
from fedwild.results.batch import Progress, Watcher, run_batch
from fedwild.results.comparison import Comparison, FinishedRun, comparison, labelled, read_run
from fedwild.results.comparison.grouping import plain
from fedwild.results.comparison.notes import some
from fedwild.results.report import write_report
from fedwild.results.sweeps.axes import Combination
from fedwild.results.sweeps.plan import Sweep, SweepRun, check_kept, each_checked
from fedwild.results.tables.formats import FORMATS, write_table
from fedwild.results.tables.model import ResultTable
from fedwild.runs.experiment import prepare
from fedwild.runs.folder import RunFolder

FORMAT = 1


def check_sweep(sweep: Sweep, record: Record, work: WorkDisplay | None = None) -> None:
    """Check data, networks and the contents of the folder before the first run."""
    record.check_only_adds()
    check_kept(sweep)
    new = {run.combination.label for run in sweep.runs if not run.folder.exists()}
    todo = {run.combination.label: run for run in sweep.first_runs() if run.combination.label in new}
    places = {label: place for place, label in enumerate(todo)}

    def check(item: Combination) -> None:
        if work is not None:
            work.show("checking combinations", places[item.label], len(todo))
        experiment = prepare(todo[item.label].planned.config, progress=work.download if work is not None else None)
        # The model to start from is read on demand.
        _ = experiment.initial

    each_checked([run.combination for run in todo.values()], check)


def run_sweep(sweep: Sweep, record: Record, watcher: Watcher, workers: int | None = None) -> Progress:
    """Run everything that is not finished; a failed run does not stop the others."""
    with in_use(sweep):
        record.write_plan()
        planned = [run.planned for run in sweep.runs]
        return run_batch(planned, watcher, workers, save=lambda progress: record.write_runs(progress.failures))


@contextmanager
def in_use(sweep: Sweep) -> Iterator[None]:
    """Lock the folder against a second sweep."""
    folder = RunFolder(sweep.folder)
    with explain_os_errors(f"--out {str(sweep.folder)!r} cannot be created"):
        sweep.folder.mkdir(parents=True, exist_ok=True)
        try:
            folder.lock()
        except UserError:
            raise UserError(
                f"--out {str(sweep.folder)!r} is in use by another sweep: wait for it, or choose another folder."
            ) from None
    try:
        yield
    finally:
        folder.unlock()


def compared_sweep(
    sweep: Sweep,
    record: Record,
    metrics: Sequence[str] = (),
    failures: Mapping[str, UserError] | None = None,
    each_run: bool = False,
) -> Comparison:
    """Compare the sweep's finished runs, at least one, with a row for each combination or for each run."""
    by_row = [run for first in sweep.first_runs() for run in sweep.runs if run.combination is first.combination]
    pairs = [(run, done) for run in by_row if (done := record.finished(run)) is not None]
    labels = {done.path: run.planned.label if each_run else run.combination.label for run, done in pairs}
    rows = labelled([done for _, done in pairs], labels, sweep.axes.varied())
    note = f"Not included, because they failed: {some(failures)}." if failures else None
    return comparison(rows, metrics, [note])


def write_tables(sweep: Sweep, table: ResultTable) -> None:
    """Write the table to the sweep's folder in every format."""
    for format in FORMATS:
        write_table(table, sweep.folder / f"table.{format}")


def write_reports(sweep: Sweep, record: Record, work: WorkDisplay) -> dict[Path, str]:
    """Write reports of finished runs that have none. Return why some could not be written, by run folder."""
    failed = {}
    waiting = [run for run in sweep.runs if record.finished(run) and not (run.folder / "report.html").exists()]
    for number, run in enumerate(waiting):
        work.show("writing reports", number, len(waiting))
        try:
            write_report(run.folder)
        except Exception as error:
            failed[run.folder] = " ".join(str(error).split()) or type(error).__name__
    return failed


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
                        "this one does not have with the same settings: extend the old sweep, or choose another --out."
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
    with explain_os_errors(f"{str(path)!r} cannot be written"):
        write_atomically(path, text.encode(), durable=False, private=False)
