"""The command that reproduces the papers' tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedwild.cli import options
from fedwild.cli.options import Words, option
from fedwild.core.errors import UserError, explain_os_errors
from fedwild.core.text import count
from fedwild.display.console import print_warning

if TYPE_CHECKING:
    from fedwild.results.papers import Table
    from fedwild.results.reproduction import Outcome, Plan
    from fedwild.results.tables.model import ResultTable


def reproduce(
    name: Annotated[Words, typer.Argument(metavar="TABLE", help="PAPER/TABLE; see `fedwild reproduce --list`.")] = None,
    only: Annotated[Words, option("KEY=VALUE,...", "Only these cells, such as data=mnist,partition=c2.")] = None,
    scale: Annotated[
        Words, option("SHARE", "Factor for rounds, or for epochs if there is one round (default: 1).")
    ] = None,
    seeds: Annotated[
        Words, option("N,N,...", "Seeds, such as 0,1,2; our figure is their mean (default: the paper's, or 0).")
    ] = None,
    stand_in: Annotated[
        bool, typer.Option("--stand-in", help="Replace missing data by other domains or the digits; marks the figures.")
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List the tables, or a table's rows, with what is runnable here.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the runs and the table so far without running anything.")
    ] = False,
    out_folder: Annotated[Path, option("DIR", "Folder for the runs.", "--runs")] = Path("runs/reproduce"),
    files: Annotated[
        list[Path] | None,
        option("FILE", "Also write the table (.html, .csv, .tex, .md) or draw a figure (.png, .svg, .pdf).", "--out"),
    ] = None,
    settings: options.Settings = None,
    workers: options.Workers = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Reproduce a table, or a figure, of one of the five papers.

    Our figures are shown beside the paper's. All cells that can be run here are run with the paper's settings, each
    distinct run once. This can take long: use --dry-run first, choose cells with --only, or shorten the runs with
    --scale. Repeat the command to continue after an interruption; tables share finished runs.

    Examples:

      fedwild reproduce --list

      fedwild reproduce fedov/table1 --list

      fedwild reproduce fedov/table1 --only data=mnist,partition=c2 --scale 0.1

      fedwild reproduce gains/table1 --seeds 0,1,2 --out gains.md

      fedwild reproduce fedov/figure5 --only partition=c2 --scale 0.1 --out figure5.png
    """
    from fedwild.results import papers
    from fedwild.results.pictures.drawing import write_figure
    from fedwild.results.reproduction import curves, outcomes_of, plan, result_table

    pictures, tables = files_of(files or [])
    if listing:
        options.reject_options({"--out": str(pictures[0]) if pictures else None}, "with --list")
        of_runs = {"--scale": scale, "--seeds": seeds, "--set": settings, "--workers": workers}
        options.reject_options({**of_runs, "--stand-in": stand_in, "--dry-run": dry_run}, "with --list")
        options.reject_options({"--only": only if name is None else None}, "without TABLE")
        options.write_files(show_list(name, only, as_json), tables, quiet=as_json)
        return
    if name is None:
        raise UserError("TABLE is missing: see `fedwild reproduce --list`.")
    processes = None if workers is None else options.number("--workers", workers, 0, range(257))
    table = chosen(papers.table(name), only)
    todo = plan(table, out_folder, share_of(scale), seeds_of(seeds), stand_in, settings or [])
    if not todo.runs:
        waits = "; ".join(f"{reason} ({count(cells, 'cell')})" for reason, cells in todo.reasons.items())
        raise UserError(f"{table.name}: none of the chosen cells can be run here. They wait for {waits}.")
    if pictures:
        curves.curves_of(todo)
    failures = {} if dry_run else run_all(todo, out_folder, processes, quiet)
    outcomes = outcomes_of(todo, failures)
    shown = result_table(todo, outcomes)
    show(todo, outcomes, shown, failures, dry_run, as_json)
    # After printing the table, so that it is not lost if a file cannot be written.
    options.write_files(shown, tables, quiet=as_json)
    for file in pictures:
        write_figure(curves.draw(todo, outcomes), file)
        if not as_json:
            options.say(f"picture written to {file}")
    for label, problem in failures.items():
        print_warning(f"failed: {label}: {problem}")
    if failures:
        raise typer.Exit(1)


def files_of(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return the pictures and the tables to write, all checked before anything is run."""
    from fedwild.results.pictures.drawing import METADATA, check_drawable
    from fedwild.results.tables.formats import format_of

    pictures = [file for file in files if file.suffix.lower().removeprefix(".") in METADATA]
    tables = [file for file in files if file not in pictures]
    for file in pictures:
        check_drawable(file)
    for file in tables:
        format_of(file)
    return pictures, tables


def run_all(todo: Plan, folder: Path, workers: int | None, quiet: bool) -> dict[str, UserError]:
    """Run everything that is not finished. Return the errors of failed runs, by label."""
    from fedwild.results.batch import run_batch
    from fedwild.results.batch_display import BatchDisplay

    with explain_os_errors(f"--runs {str(folder)!r} cannot be created"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with BatchDisplay(options.err, quiet) as display:
            return run_batch(todo.runs, display, workers).failures
    except KeyboardInterrupt:
        options.say("interrupted: repeat the command to continue.", options.err)
        raise typer.Exit(130) from None


def show(
    todo: Plan,
    outcomes: list[Outcome],
    shown: ResultTable,
    failures: dict[str, UserError],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Print the table, or all figures as JSON."""
    from fedwild.results.tables.formats import print_table
    from fedwild.runs.events import without_nan

    if as_json:
        about: dict[str, Any] = {
            "table": todo.table.name,
            "scale": todo.scale,
            "runs": {str(run.folder): run.is_done for run in todo.runs},
            "cells": [outcome.to_json() for outcome in outcomes],
            "notes": shown.notes,
            "failures": {label: str(problem) for label, problem in failures.items()},
        }
        print(json.dumps(without_nan(about)))
        return
    if dry_run:
        for run in todo.runs:
            options.say(f"{'done' if run.is_done else 'to do'}  {run.folder}  {run.label}")
    print_table(options.out, shown)


def show_list(name: str | None, only: str | None, as_json: bool) -> ResultTable:
    """Print all tables, or the rows of one, and return what was printed."""
    from fedwild.results import papers
    from fedwild.results.reproduction.listing import (
        cells_listed,
        partial_lines,
        stand_in_lines,
        table_json,
        tables_listed,
        waiting_lines,
    )
    from fedwild.results.tables.formats import print_table, terminal_table

    tables = [chosen(papers.table(name), only)] if name is not None else papers.tables()
    listed = cells_listed(tables[0]) if name is not None else tables_listed(tables)
    if as_json:
        print(json.dumps([table_json(table) for table in tables]))
        return listed
    if options.out.is_terminal:
        # Captions are long: wrap them instead of printing several lines per table.
        options.out.print(terminal_table(listed))
    else:
        print_table(options.out, listed)
    below = {
        "Generated stand-ins (marked †):": stand_in_lines(tables),
        "Data sets that are not complete here:": partial_lines(tables),
    }
    if name is None:
        below["Waiting for:"] = waiting_lines(tables)
    for heading, lines in below.items():
        for line in [heading, *(f"  {line}" for line in lines)] if lines else []:
            options.say(line)
    return listed


def chosen(table: Table, only: str | None) -> Table:
    """Return the table with the cells that --only selects."""
    if only is None:
        return table
    return table.only(options.pairs("--only", only.split(","), "KEY=VALUE,KEY=VALUE, such as data=mnist"))


def share_of(text: str | None) -> float:
    """Return the value of --scale."""
    share = 1.0 if text is None else options.real(text)
    if not isinstance(share, float) or not 0 < share <= 1:
        raise UserError(f"--scale {text} is not allowed: it must be a number above 0 and at most 1, such as 0.1.")
    return share


def seeds_of(text: str | None) -> list[int]:
    """Return the values of --seeds; empty for the seed of each cell."""
    if text is None:
        return []
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) for part in parts if part.isascii() and part.isdigit()]
    if len(set(numbers)) < len(parts) or max(numbers) >= 2**63:
        raise UserError(f"--seeds {text} is not allowed: write different whole numbers, such as 0,1,2.")
    return numbers
