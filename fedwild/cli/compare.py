"""Commands over several runs: `fedwild compare` and `fedwild sweep`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedwild.cli import options
from fedwild.cli.options import Names, PathOption, Words, option
from fedwild.core.errors import UserError
from fedwild.core.text import count
from fedwild.display.console import print_warning

if TYPE_CHECKING:
    from fedwild.results.sweeps.plan import Sweep
    from fedwild.results.sweeps.running import Record

Metrics = Annotated[
    Names, option("NAME", "A figure of result.json; repeatable (default: those that `run` shows).", "--metric")
]


def compare(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that contain run folders.")
    ],
    metrics: Metrics = None,
    by: Annotated[Names, option("KEY", "Name rows by this setting; repeatable (default: all that differ).")] = None,
    files: options.Files = None,
    as_json: options.Json = False,
) -> None:
    """Compare finished runs in one table.

    Runs that differ only in their seed are one row: mean ± sample standard deviation over seeds. The best of a column
    is bold. Each row is tested against it, by a paired t-test if both have the same three or more seeds, otherwise by
    Welch's t-test, with Holm's correction.

    Examples:

      fedwild compare runs/fedavg-digits-001 runs/fedov-digits-001

      fedwild compare runs --by method.name --metric auroc --out table.tex
    """
    from fedwild.results.comparison import compare as compared
    from fedwild.results.comparison import find_runs
    from fedwild.results.tables.formats import format_of, print_table

    for file in files or []:
        format_of(file)
    comparison = compared(find_runs(runs), metrics or (), by or ())
    table = comparison.table()
    if as_json:
        print(json.dumps({**comparison.to_json(), "files": [str(file) for file in files or []]}))
    else:
        print_table(options.out, table)
    options.write_files(table, files or [], quiet=as_json)


def sweep(
    config: options.ConfigFile = None,
    settings: options.Settings = None,
    seeds: Annotated[Words, option("N|N,N...", "Number of seeds, or a list of seeds; overrides sweep.seeds.")] = None,
    grid: Annotated[
        Names, option("SECTION.KEY=V1,V2...", "A setting and its values; repeatable, for all combinations.")
    ] = None,
    out_folder: Annotated[
        PathOption, option("DIR", "The sweep's folder (default: runs/sweep-CONFIG).", "--out")
    ] = None,
    metrics: Metrics = None,
    workers: options.Workers = None,
    rows: Annotated[str, option("KIND", "sets: a row per setting, over all seeds; runs: a row per run.")] = "sets",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and list the runs without running them.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Also write report.html into each run folder.")] = False,
    trust_code: options.TrustCode = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a config with varied settings and seeds.

    The [sweep] table of the config and the options say what varies. The results are compared in one table. All
    combinations are checked before the first run. Repeat the command to continue after an interruption; a larger
    grid keeps finished runs. A failed run does not stop the others, and the exit code is 1.

    Examples:

      fedwild sweep examples/sweep.toml

      fedwild sweep --grid method.name=fedavg,fedov --seeds 3 --out runs/methods

      fedwild sweep my.toml --seeds 0,1,2,3,4 --dry-run
    """
    from fedwild.results.batch_display import BatchDisplay
    from fedwild.results.sweeps.running import Record, check_sweep, run_sweep, write_reports

    if rows not in ("sets", "runs"):
        raise UserError(f"--rows {rows} is not allowed: it must be sets or runs.")
    plan = plan_of(config, settings or [], seeds, grid or [], out_folder, workers)
    record = Record(plan)
    with options.working(quiet) as work:
        check_sweep(plan, record, work)
    if dry_run:
        show_plan(plan, record, as_json)
        return
    try:
        with BatchDisplay(options.err, quiet) as display:
            progress = run_sweep(plan, record, display, options.whole(workers))
    except KeyboardInterrupt:
        done = sum(record.finished(run) is not None for run in plan.runs)
        state = f"{done} of {len(plan.runs)} runs are finished in {plan.folder}"
        print(f"interrupted: {state}; repeat the command to continue.", file=sys.stderr)
        raise typer.Exit(130) from None
    show_sweep(plan, record, progress.failures, metrics or [], rows == "runs", as_json)
    if report:
        with options.working(quiet) as work:
            unwritten = write_reports(plan, record, work)
        for folder, reason in unwritten.items():
            print_warning(f"warning: the report of {folder} could not be written: {reason}")
    if progress.failures:
        failed = f"{len(progress.failures)} of {len(plan.runs)} runs failed: {', '.join(progress.failures)}"
        print_warning(f"{failed}. See {plan.folder / 'runs.csv'}; repeat the command to try again.")
        raise typer.Exit(1)


def plan_of(
    config: Path | None,
    settings: list[str],
    seeds: str | None,
    grid: list[str],
    folder: Path | None,
    workers: str | None,
) -> Sweep:
    """Return the sweep of a config file and options."""
    from fedwild.api import flag_layer
    from fedwild.core.layers import merge
    from fedwild.core.toml import read_toml
    from fedwild.results.sweeps.axes import read_axes
    from fedwild.results.sweeps.plan import planned_sweep
    from fedwild.runs.config import setting_layers

    base = read_toml(config) if config is not None else {}
    fixed = merge(*setting_layers(settings))
    axes = read_axes(base.pop("sweep", {}), grid, seeds, fixed)
    place = folder or Path("runs") / (f"sweep-{config.stem}" if config is not None else "sweep")
    return planned_sweep(place, base, axes, merge(fixed, flag_layer(workers=options.whole(workers))))


def show_plan(plan: Sweep, record: Record, as_json: bool) -> None:
    """Print the runs of a sweep."""
    rows = record.rows({})
    if as_json:
        print(json.dumps({"sweep": str(plan.folder), "runs": rows}))
        return
    for row in rows:
        options.say(f"{row['state']:<10} {row['label']}, seed {row['seed']}: {row['folder']}")
    done = sum(row["state"] == "finished" for row in rows)
    options.say(f"{count(len(rows), 'run')}, {done} finished; none was started (--dry-run)")


def show_sweep(
    plan: Sweep, record: Record, failures: dict[str, UserError], metrics: list[str], each_run: bool, as_json: bool
) -> None:
    """Print the final table and write it to the sweep's folder."""
    from fedwild.results.sweeps.running import compared_sweep, write_tables
    from fedwild.results.tables.formats import print_table

    about: dict[str, Any] = {"sweep": str(plan.folder), "runs": record.rows(failures)}
    if not any(run["state"] == "finished" for run in about["runs"]):
        if as_json:
            print(json.dumps({"columns": [], "rows": [], "notes": [], **about}))
        return
    if metrics:
        # Write the tables even if a name in `metrics` is wrong.
        write_tables(plan, compared_sweep(plan, record, (), failures, each_run).table())
    comparison = compared_sweep(plan, record, metrics, failures, each_run)
    table = comparison.table()
    write_tables(plan, table)
    if as_json:
        print(json.dumps({**comparison.to_json(), **about}))
        return
    print_table(options.out, table)
    options.say(f"sweep folder: {plan.folder} (runs.csv, table.html, table.csv, table.tex, table.md)")
