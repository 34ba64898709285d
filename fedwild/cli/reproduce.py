"""The command that repeats the papers' tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedwild.cli.options import Json, Names, Quiet, Settings, Words, Workers, err, number, out, real, refuse
from fedwild.core.errors import UserError

if TYPE_CHECKING:
    from fedwild.results.papers import Table
    from fedwild.results.reproduction import Outcome, Plan
    from fedwild.results.tables import ResultTable


def reproduce(
    name: Annotated[Words, typer.Argument(metavar="TABLE", help="PAPER/TABLE; `--list` shows all.")] = None,
    only: Annotated[
        Words, typer.Option(metavar="KEY=VALUE,...", help="Only these cells, such as data=mnist,partition=c2.")
    ] = None,
    scale: Annotated[
        Words, typer.Option(metavar="SHARE", help="Rounds (or epochs, if there is one round) times this (1).")
    ] = None,
    seeds: Annotated[
        Words, typer.Option(metavar="N,N,...", help="Seeds, such as 0,1,2; our figure is their mean (one seed).")
    ] = None,
    stand_in: Annotated[
        bool,
        typer.Option(
            "--stand-in",
            help="Where data is missing, leave that domain out or take the embedded digits; such figures are marked.",
        ),
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List tables, or a table's rows: runnable here, or what they wait for.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs and the table so far; run nothing.")
    ] = False,
    out_folder: Annotated[Path, typer.Option("--runs", metavar="DIR", help="Where runs are kept.")] = Path(
        "runs/reproduce"
    ),
    files: Annotated[
        Names, typer.Option("--out", metavar="FILE", help="Also write .html, .csv, .tex or .md; repeatable.")
    ] = None,
    settings: Settings = None,
    workers: Workers = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Repeat a table of one of the five papers, and set our figures beside the paper's.

    Without --list, all cells that can be run here are run with the paper's settings, each distinct run once. That
    takes long: look with --dry-run first, choose cells with --only, or shorten with --scale. Interrupted work goes on
    when the same command is given again; finished runs are shared between tables.

    Examples:

      fedwild reproduce --list

      fedwild reproduce fedov/table1 --list

      fedwild reproduce fedov/table1 --only data=mnist,partition=c2 --scale 0.1

      fedwild reproduce gains/table1 --only setting=reviews-dvd-books --seeds 0,1,2 --out gains.md
    """
    from fedwild.results import papers
    from fedwild.results.reproduction import outcomes_of, plan, result_table
    from fedwild.results.tables import format_of

    targets = [Path(file) for file in files or []]
    for target in targets:
        format_of(target)
    if listing:
        of_runs = {"--scale": scale, "--seeds": seeds, "--set": settings, "--workers": workers}
        refuse({**of_runs, "--stand-in": stand_in, "--dry-run": dry_run}, "not with --list")
        refuse({"--only": only if name is None else None}, "with a TABLE")
        show_list(name, only, targets, as_json)
        return
    if name is None:
        raise UserError("TABLE is missing: name one of those that `fedwild reproduce --list` shows.")
    count = None if workers is None else number("--workers", workers, 0, range(257))
    table = chosen(papers.table(name), only)
    todo = plan(table, out_folder, share_of(scale), seeds_of(seeds), stand_in, settings or [])
    if not todo.runs:
        waits = "; ".join(f"{reason} ({count} cells)" for reason, count in todo.reasons.items())
        raise UserError(f"{table.name}: none of the chosen cells can be run here. They wait for {waits}.")
    failures = {} if dry_run else carried_out(todo, out_folder, count, quiet)
    outcomes = outcomes_of(todo, failures)
    shown = result_table(todo, outcomes)
    show(todo, outcomes, shown, failures, dry_run, as_json)
    write(shown, targets, as_json)
    for label, problem in failures.items():
        print(f"failed: {label}: {problem}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


def carried_out(todo: Plan, folder: Path, workers: int | None, quiet: bool) -> dict[str, UserError]:
    """Do what is not done yet; what ended runs, by label."""
    from fedwild.results.batch import run_batch
    from fedwild.results.batch_display import BatchDisplay

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--runs {str(folder)!r} cannot be made: {error.strerror or error}.") from None
    try:
        with BatchDisplay(err, quiet) as display:
            return run_batch(todo.runs, display, workers).failures
    except KeyboardInterrupt:
        err.print("interrupted: the same command goes on from here.", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


def show(
    todo: Plan,
    outcomes: list[Outcome],
    shown: ResultTable,
    failures: dict[str, UserError],
    dry_run: bool,
    as_json: bool,
) -> None:
    """The table on the terminal or as JSON."""
    from fedwild.results.tables import print_table
    from fedwild.runs.events import without_nan

    if as_json:
        about: dict[str, Any] = {
            "table": todo.table.name,
            "scale": todo.scale,
            "runs": {str(run.folder): run.is_done for run in todo.runs},
            "cells": [outcome.described() for outcome in outcomes],
            "notes": shown.notes,
            "failures": {label: str(problem) for label, problem in failures.items()},
        }
        print(json.dumps(without_nan(about)))
        return
    if dry_run:
        for run in todo.runs:
            line = f"{'done' if run.is_done else 'to do'}  {run.folder}  {run.label}"
            out.print(line, highlight=False, markup=False, soft_wrap=True)
    print_table(out, shown)


def write(table: ResultTable, targets: list[Path], as_json: bool) -> None:
    """The table in files, after it was shown: should one be unwritable now, nothing is lost."""
    from fedwild.results.tables import write_table

    for target in targets:
        write_table(table, target)
        if not as_json:
            out.print(f"written to {target}", highlight=False, markup=False, soft_wrap=True)


def show_list(name: str | None, only: str | None, targets: list[Path], as_json: bool) -> None:
    """All tables, or the rows of one."""
    from fedwild.results import papers
    from fedwild.results.reproduction.listing import cells_listed, described, tables_listed, waiting_lines
    from fedwild.results.tables import print_table, terminal_table

    tables = [chosen(papers.table(name), only)] if name is not None else papers.tables()
    listed = cells_listed(tables[0]) if name is not None else tables_listed(tables)
    if as_json:
        print(json.dumps([described(table) for table in tables]))
        write(listed, targets, as_json)
        return
    if out.is_terminal:
        # Words wrap: captions are long, and lines for each table would be many.
        out.print(terminal_table(listed))
    else:
        print_table(out, listed)
    if name is None:
        out.print("Waiting for:", highlight=False)
        for line in waiting_lines(tables):
            out.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    write(listed, targets, as_json)


def chosen(table: Table, only: str | None) -> Table:
    """The table with the cells that --only leaves."""
    if only is None:
        return table
    wanted: dict[str, str] = {}
    for part in only.split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UserError(f"--only {only} is not allowed: write KEY=VALUE,KEY=VALUE, such as data=mnist.")
        wanted[key.strip()] = value.strip()
    return table.only(wanted)


def share_of(text: str | None) -> float:
    """What --scale says."""
    share = 1.0 if text is None else real(text)
    if not isinstance(share, float) or not 0 < share <= 1:
        raise UserError(f"--scale {text} is not allowed: it must be a number above 0 and at most 1, such as 0.1.")
    return share


def seeds_of(text: str | None) -> list[int]:
    """What --seeds says; none: each cell's own."""
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit()]
    if len(set(numbers)) < len(parts) or max(numbers) >= 2**63:
        raise UserError(f"--seeds {text} is not allowed: write different whole numbers, such as 0,1,2.")
    return numbers
