"""Commands over several runs: `fedwild compare` and `fedwild sweep`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from fedwild.cli.options import (
    ConfigFile,
    Json,
    Names,
    PathOption,
    Quiet,
    Settings,
    Words,
    Workers,
    err,
    out,
    whole,
    working,
)
from fedwild.core.errors import UserError

if TYPE_CHECKING:
    from fedwild.results.sweeps import Record, Sweep

Metrics = Annotated[
    Names, typer.Option("--metric", metavar="NAME", help="A figure of result.json; repeatable (those `run` shows).")
]


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that hold some.")],
    metrics: Metrics = None,
    by: Annotated[
        Names,
        typer.Option(metavar="KEY", help="Call rows by this setting, such as method.lr; repeatable (all that differ)."),
    ] = None,
    files: Annotated[
        Optional[list[Path]],  # noqa: UP045
        typer.Option("--out", metavar="FILE", help="Also write the table: .html, .csv, .tex or .md; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare finished runs in one table: means over seeds, the best in bold, and how sure the differences are.

    Runs that differ in their seed only make one row: mean ± sample deviation over seeds. Each row is tested against the
    best of a column: a paired t-test if both have the same three or more seeds, else Welch's; corrected after Holm.

    Examples:

      fedwild compare runs/fedavg-digits-001 runs/fedov-digits-001

      fedwild compare runs --by method.name --metric auroc --metric fpr95_known_pos --out table.tex --out table.html
    """
    from fedwild.results.comparison import compare as compared
    from fedwild.results.comparison import find_runs
    from fedwild.results.tables import format_of, print_table, write_table

    for file in files or []:
        format_of(file)
    comparison = compared(find_runs(runs), metrics or (), by or ())
    table = comparison.table()
    if as_json:
        print(json.dumps({**comparison.described(), "files": [str(file) for file in files or []]}))
    else:
        print_table(out, table)
    for file in files or []:
        write_table(table, file)
        if as_json:
            continue
        out.print(f"table written to {file}", highlight=False, markup=False, soft_wrap=True)


def sweep(
    config: ConfigFile = None,
    settings: Settings = None,
    seeds: Annotated[
        Words, typer.Option(metavar="N|N,N...", help="So many seeds from 0 on, or these; wins over sweep.seeds.")
    ] = None,
    grid: Annotated[
        Names,
        typer.Option(metavar="SECTION.KEY=V1,V2...", help="A setting and its values; repeatable, all combinations."),
    ] = None,
    out_folder: Annotated[
        PathOption, typer.Option("--out", metavar="DIR", help="The sweep's folder (runs/sweep-CONFIG).")
    ] = None,
    metrics: Metrics = None,
    workers: Workers = None,
    rows: Annotated[str, typer.Option(metavar="KIND", help="sets: a row for all seeds together; or runs.")] = "sets",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list the runs, and do none.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Also write report.html into each run's folder.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a config with many settings and seeds, and compare the results in one table.

    What varies is in the config's [sweep] table, or in options. All combinations are checked before the first run. The
    same command goes on where an earlier one stopped, and a larger grid keeps what is done. A run that fails stops no
    other; the exit code is then 1.

    Examples:

      fedwild sweep examples/sweep.toml

      fedwild sweep --grid method.name=fedavg,fedov --grid partition.beta=0.1,0.5 --seeds 3 --out runs/methods

      fedwild sweep my.toml --seeds 0,1,2,3,4 --dry-run
    """
    from fedwild.results import sweeps
    from fedwild.results.batch_display import BatchDisplay

    if rows not in ("sets", "runs"):
        raise UserError(f"--rows {rows} is not allowed: it must be sets or runs.")
    plan = plan_of(config, settings or [], seeds, grid or [], out_folder, workers)
    record = sweeps.Record(plan)
    with working(quiet) as work:
        sweeps.check_sweep(plan, record, work)
    if dry_run:
        show_plan(plan, record, as_json)
        return
    try:
        with BatchDisplay(err, quiet) as display:
            progress = sweeps.run_sweep(plan, record, display, whole(workers))
    except KeyboardInterrupt:
        done = sum(record.finished(run) is not None for run in plan.runs)
        told = f"{done} of {len(plan.runs)} runs are done in {plan.folder}; the same command goes on"
        print(f"interrupted: {told}.", file=sys.stderr)
        raise typer.Exit(130) from None
    show_sweep(plan, record, progress.failures, metrics or [], rows == "runs", as_json)
    if report:
        with working(quiet) as work:
            missing = sweeps.write_reports(plan, record, work)
        for folder, reason in missing.items():
            print(f"warning: the report of {folder} could not be written: {reason}", file=sys.stderr)
    if progress.failures:
        failed = f"{len(progress.failures)} of {len(plan.runs)} runs failed: {', '.join(progress.failures)}"
        print(f"{failed}; {plan.folder / 'runs.csv'} says why, and the same command tries again.", file=sys.stderr)
        raise typer.Exit(1)


def plan_of(
    config: Path | None,
    settings: list[str],
    seeds: str | None,
    grid: list[str],
    folder: Path | None,
    workers: str | None,
) -> Sweep:
    """The sweep that a file and options ask for."""
    from fedwild.api import flag_layer
    from fedwild.core.layers import merge
    from fedwild.core.toml import read_toml
    from fedwild.results.sweeps import planned_sweep, read_axes
    from fedwild.runs.config import setting_layers

    base = read_toml(config) if config is not None else {}
    fixed = merge(*setting_layers(settings))
    axes = read_axes(base.pop("sweep", {}), grid, seeds, fixed)
    place = folder or Path("runs") / (f"sweep-{config.stem}" if config is not None else "sweep")
    return planned_sweep(place, base, axes, merge(fixed, flag_layer(workers=whole(workers))))


def show_plan(plan: Sweep, record: Record, as_json: bool) -> None:
    """What a sweep would do."""
    rows = record.rows({})
    if as_json:
        print(json.dumps({"sweep": str(plan.folder), "runs": rows}))
        return
    for row in rows:
        line = f"{row['state']:<10} {row['label']}, seed {row['seed']}: {row['folder']}"
        out.print(line, highlight=False, markup=False, soft_wrap=True)
    done = sum(row["state"] == "finished" for row in rows)
    out.print(f"{len(rows)} runs, {done} of them done; none was begun (--dry-run)", highlight=False, markup=False)


def show_sweep(
    plan: Sweep, record: Record, failures: dict[str, UserError], metrics: list[str], each_run: bool, as_json: bool
) -> None:
    """The closing table, on the screen and in the sweep's folder."""
    from fedwild.results.sweeps import compared_sweep, write_tables
    from fedwild.results.tables import print_table

    about: dict[str, Any] = {"sweep": str(plan.folder), "runs": record.rows(failures)}
    if not any(run["state"] == "finished" for run in about["runs"]):
        if as_json:
            print(json.dumps({"columns": [], "rows": [], "notes": [], **about}))
        return
    if metrics:
        # A wrong name must not cost the tables of all that was run.
        write_tables(plan, compared_sweep(plan, record, (), failures, each_run).table())
    comparison = compared_sweep(plan, record, metrics, failures, each_run)
    table = comparison.table()
    write_tables(plan, table)
    if as_json:
        print(json.dumps({**comparison.described(), **about}))
        return
    print_table(out, table)
    told = f"sweep folder: {plan.folder} (runs.csv, table.html, table.csv, table.tex, table.md)"
    out.print(told, highlight=False, markup=False, soft_wrap=True)
