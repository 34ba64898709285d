"""Our figures beside the paper's."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from fedwild.core.errors import UserError
from fedwild.core.text import count, cut
from fedwild.results.batch import Planned
from fedwild.results.reproduction.listing import without_kinds
from fedwild.results.reproduction.plan import Entry, Plan
from fedwild.results.tables.model import Cell as Shown
from fedwild.results.tables.model import ResultTable, words
from fedwild.runs.folder import RunFolder

STAND_IN = "†"


@dataclass(frozen=True)
class Outcome:
    """Our figure for a cell."""

    entry: Entry
    values: tuple[float, ...]
    """The value of each seed whose runs are finished, in the paper's unit."""
    problem: str | None
    """Why there is no figure."""

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        value = self.entry.cell.value
        return None if self.mean is None or value is None else self.mean - value

    def to_json(self) -> dict[str, Any]:
        cell = self.entry.cell
        return {
            "keys": cell.keys,
            "unit": cell.unit,
            "paper": cell.value,
            "paper_deviation": cell.deviation,
            "ours": self.mean,
            "deviation": self.deviation,
            "difference": self.difference,
            "values": list(self.values),
            "runs": [str(run.folder) for run in self.entry.runs],
            "stand_in": self.entry.stand_in,
            "problem": self.problem,
        }


def outcomes_of(plan: Plan, failures: dict[str, UserError]) -> list[Outcome]:
    """Return the outcome of every cell from the finished runs."""
    by_round = any(entry.cell.measure and entry.cell.measure.round for entry in plan.entries)
    results: dict[Any, dict[str, Any] | None] = {run.folder: _result(run, by_round) for run in plan.runs}
    return [_outcome(entry, results, failures) for entry in plan.entries]


def _result(run: Planned, by_round: bool) -> dict[str, Any] | None:
    """Return a finished run's result, with its figures by round if they are used."""
    if not run.is_done:
        return None
    folder = RunFolder.open(run.folder)
    result = folder.result()
    if result is not None and not (isinstance(result.get("metrics"), dict) and isinstance(result.get("by"), dict)):
        path = run.folder / "result.json"
        raise UserError(f"{str(path)!r} is damaged: delete it, then run `fedwild resume {run.folder}`.")
    return {**result, "history": _history(folder)} if result is not None and by_round else result


def _history(folder: RunFolder) -> dict[int, dict[str, Any]]:
    """Return the figures of each evaluated round, counted from 1."""
    rounds = (event for event in folder.read_log() if event["event"] == "round" and event.get("metrics"))
    return {event["index"] + 1: {"metrics": event["metrics"], "by": event.get("by") or {}} for event in rounds}


def _outcome(entry: Entry, results: dict[Any, dict[str, Any] | None], failures: dict[str, UserError]) -> Outcome:
    if not entry.runs:
        return Outcome(entry, (), f"waits for {entry.cell.waiting}")
    measure = entry.cell.measure
    if measure is None:
        return Outcome(entry, (), "a run has no such figure")
    done = [result for run in entry.runs if (result := results[run.folder]) is not None]
    by_seed: dict[int, list[dict[str, Any] | None]] = {}
    for run in entry.runs:
        by_seed.setdefault(run.config.seed, []).append(results[run.folder])
    if entry.stand_in and measure.part and any(measure.part not in result["by"] for result in done):
        return Outcome(entry, (), f"{measure.part} is missing")
    try:
        means = (statistics.fmean(map(measure.of, found)) for seed in by_seed.values() if (found := _complete(seed)))
        values = tuple(value for value in means if not math.isnan(value))
    except UserError as error:
        return Outcome(entry, (), str(error))
    if values:
        return Outcome(entry, values, None)
    failed = [str(failures[run.label]) for run in entry.runs if run.label in failures]
    reason = f"failed: {failed[0]}" if failed else "undefined" if done else "not run yet"
    return Outcome(entry, (), reason)


def _complete(results: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Return the results of a seed's runs; none if a run is not finished, since the mean is over all of them."""
    return [result for result in results if result is not None] if None not in results else []


def result_table(plan: Plan, outcomes: list[Outcome]) -> ResultTable:
    """Return a row for each cell: its keys, the paper's figure, ours and the difference; for a curve, only ours."""
    keys = [key for key, values in plan.table.keys.items() if len(values) > 1] or list(plan.table.keys)
    shown = slice(1, 2) if plan.table.curves else slice(3)
    headings = ("paper", "ours", "difference")[shown]
    rows = [(*(words(o.entry.cell.keys[key]) for key in keys), *list(_figures(o))[shown]) for o in outcomes]
    return ResultTable(title_of(plan), (*keys, *headings), tuple(rows), notes_of(plan, outcomes))


def _figures(outcome: Outcome) -> tuple[Shown, Shown, Shown]:
    cell = outcome.entry.cell
    unit = f" {cell.unit}" if cell.unit else ""
    paper = Shown(
        "" if cell.value is None else f"{cell.value:.2f}{_spread(cell.deviation)}{unit}",
        values=(("", cell.value), ("deviation", cell.deviation)),
    )
    if outcome.mean is None:
        # The notes and the final messages have the full text.
        reason = outcome.problem or ""
        reason = "waits" if reason.startswith("waits") else cut(reason, 40)
        return paper, Shown(reason, values=(("", None), ("deviation", None))), Shown("", values=(("", None),))
    mark = STAND_IN if outcome.entry.stand_in else ""
    done, runs = len(outcome.values), len({run.config.seed for run in outcome.entry.runs})
    mark += f" ({done} of {runs})" if done < runs else ""
    ours = Shown(
        f"{outcome.mean:.2f}{_spread(outcome.deviation)}{unit}{mark}",
        values=(("", outcome.mean), ("deviation", outcome.deviation)),
    )
    difference = "" if outcome.difference is None else f"{outcome.difference:+.2f}"
    return paper, ours, Shown(difference, values=(("", outcome.difference),))


def caption_of(plan: Plan) -> str:
    """Return what the table shows, and which of its cells are chosen."""
    keys = plan.table.keys
    fixed = [f"{key}={values[0]}" for key, values in keys.items() if len(values) == 1]
    # If no key varies, the row itself shows them.
    chosen = f"; {', '.join(fixed)}" if fixed and len(fixed) < len(keys) else ""
    return f"{plan.table.caption}{chosen}"


def title_of(plan: Plan) -> str:
    """Return which table it is, what it shows, and the scale."""
    number = f" ({plan.table.label})" if plan.table.label else ""
    return f"{plan.table.name}{number}: {caption_of(plan)}; at scale {plan.scale:g}"


def notes_of(plan: Plan, outcomes: list[Outcome]) -> tuple[str, ...]:
    """Return what a reader must know about our figures, and the note of the table."""
    seeds = sorted({run.config.seed for run in plan.runs})
    notes = [f"ours: seed {', '.join(map(str, seeds))}{'; ± is the sample deviation' if len(seeds) > 1 else ''}."]
    if any(outcome.entry.cell.deviation is not None for outcome in outcomes):
        notes.append(f"paper: {plan.table.spread}.")
    if plan.scale != 1:
        notes.append(
            f"Scale {plan.scale:g}: rounds, or epochs where there is one round, are {plan.scale:g} times the paper's."
        )
    if plan.changed:
        notes.append(f"Changed: {', '.join(plan.changed)}.")
    others = dict.fromkeys(entry.stand_in for entry in plan.entries if entry.stand_in)
    if others:
        notes.append(f"{STAND_IN} not the paper's data: {'; '.join(others)}.")
    if plan.partial:
        notes.append(f"Not the complete data sets: {'; '.join(plan.partial)}.")
    if plan.reasons:
        waits = [f"{without_kinds(reason)} ({count(cells, 'cell')})" for reason, cells in plan.reasons.items()]
        notes.append(f"Waiting: {'; '.join(waits)}.")
    if plan.table.curves:
        notes.append("The paper's text gives no numbers of this figure.")
    if plan.table.note:
        notes.append(plan.table.note)
    return tuple(notes)


def _spread(deviation: float | None) -> str:
    return "" if deviation is None else f" ± {deviation:.2f}"
