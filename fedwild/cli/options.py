"""What commands share: options, parsing of numbers, and the display of a run and its result."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedwild.core.defaults import DEFAULT_METHOD
from fedwild.core.errors import UserError
from fedwild.core.trust import trusting_code
from fedwild.display.console import open_console, print_warning

if TYPE_CHECKING:
    from fedwild.api import Run
    from fedwild.display.progress import WorkDisplay
    from fedwild.results.tables.model import ResultTable
    from fedwild.runs.events import Listener

WIDTH_PER_FIGURE = 11
"""A terminal with fewer columns per figure gets lines instead of a table."""
out = open_console()
err = open_console(stderr=True)


def option(metavar: str, text: str, *names: str) -> Any:
    """Return an option with this help text; its name is that of the parameter unless `names` gives others."""
    return typer.Option(*names, metavar=metavar, help=text)


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/fedavg-digits-001.")]
Words = str | None
# Numbers are text here, so that the error for an invalid number names the setting and the allowed values.
Number = str | None
PathOption = Path | None
Names = list[str] | None
Workers = Annotated[Number, option("N", "Worker processes (default: one per core); 0 uses this one.")]
ConfigFile = Annotated[PathOption, typer.Argument(metavar="CONFIG.toml", help="Config file; options override it.")]
Method = Annotated[
    Words, option("NAME", f"See `fedwild list methods`, or package.module:Class (default: {DEFAULT_METHOD}).")
]
Data = Annotated[
    list[str] | None,
    option(
        "NAME|PATH",
        "See `fedwild list data`, or a path to your data (default: digits); repeatable, for several domains.",
    ),
]
Partition = Annotated[
    Words, option("NAME", "How data is split among clients: classes:2, iid ... (default: dirichlet:0.5).")
]
Model = Annotated[
    Words, option("NAME", "See `fedwild list models`, or package.module:Class (default: depends on the data).")
]
Clients = Annotated[Number, option("N", "Number of clients (default: 10, or as the data requires).")]
Rounds = Annotated[Number, option("N", "Number of communication rounds.")]
Seed = Annotated[Number, option("N", "Random seed (default: 0).")]
StartFrom = Annotated[Words, option("RUN", "Start from the global model of a finished run; classes match by name.")]
Settings = Annotated[
    list[str] | None, option("SECTION.KEY=VALUE", "Any setting, such as method.lr=0.1; repeatable.", "--set")
]
Files = Annotated[
    list[Path] | None, option("FILE", "Also write the table: .html, .csv, .tex or .md; repeatable.", "--out")
]
NewFolder = Annotated[PathOption, option("DIR", "The new run folder (default: runs/METHOD-DATA-NNN).", "--out")]
Engine = Annotated[Words, option("NAME", "Where clients run: local (processes on this machine) or ray (a cluster).")]
Superlink = Annotated[Words, option("HOST:PORT", "A SuperLink that already runs on this machine (default: start one).")]
Listen = Annotated[Words, option("HOST:PORT", "Where the coordinator listens for sites (default: 127.0.0.1:8443).")]
Certificates = Annotated[
    PathOption, option("DIR", "Folder made by `fedwild flower keys`, for TLS and registered sites (default: no TLS).")
]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write TensorBoard files to RUN/tensorboard during the run.")
]
NoReport = Annotated[
    bool, typer.Option("--no-report", help="Do not write report.html (FEDWILD_REPORT=no has the same effect).")
]


def _trust_code(context: typer.Context, value: bool) -> bool:
    """Trust code until the command ends."""
    if value:
        context.with_resource(trusting_code())
    return value


TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code",
        callback=_trust_code,
        help="Run the code (module:Class) that the settings of somebody else's run name. It can do anything.",
    ),
]
OwnClient = Annotated[
    Words, option("NAME", "The client, for methods with a model per client; uses its own test data.", "--client")
]


def say(text: str, console: Console = out) -> None:
    """Print text as it is: without colours, markup or line breaks."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def whole(text: str | None) -> int | None:
    """Return a whole number; other text is returned unchanged, and validation rejects it later."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return text  # type: ignore[return-value]


def real(text: str | None) -> float | None:
    """Return a number with decimals; other text is returned unchanged."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text  # type: ignore[return-value]


def pairs(option: str, texts: list[str], form: str = "OWN=NAME, such as zwei=2") -> dict[str, str]:
    """Return texts of the form KEY=VALUE as a table."""
    table = {}
    for text in texts:
        key, _, value = (part.strip() for part in text.partition("="))
        if not key or not value:
            raise UserError(f"{option} {text} is not allowed: write {form}.")
        table[key] = value
    return table


def place(superlink: str | None, listen: str | None, certificates: Path | None) -> dict[str, Any]:
    """Return the address of the coordinator as settings of the engine."""
    folder = None if certificates is None else str(certificates.resolve())
    options = {"superlink": superlink, "listen": listen, "certificates": folder}
    return {key: value for key, value in options.items() if value is not None}


def number(option: str, text: str | None, default: int, allowed: range) -> int:
    """Return the number of an option that is not a setting; reject a number that is not allowed."""
    value = default if text is None else whole(text)
    if isinstance(value, int) and value in allowed:
        return value
    some = f"from {allowed[0]} to {allowed[-1]}"
    steps = f", in steps of {allowed.step}" if allowed.step > 1 else ""
    raise UserError(f"{option} {text} is not allowed: it must be a whole number {some}{steps}.")


def reject_options(options: Mapping[str, object], reason: str) -> None:
    """Reject options that are given but have no effect here."""
    for option, value in options.items():
        if value not in (None, [], False):
            words = value if isinstance(value, list) else [] if value is True else [value]
            raise UserError(f"{' '.join(map(str, [option, *words]))} is not allowed {reason}.")


def write_files(table: ResultTable, files: list[Path], quiet: bool) -> None:
    """Write a table to files, and print their names unless quiet."""
    from fedwild.results.tables.formats import write_table

    for file in files:
        write_table(table, file)
        if not quiet:
            say(f"table written to {file}")


@contextmanager
def working(quiet: bool = False) -> Iterator[WorkDisplay]:
    """Show the progress of a command that makes no run; Ctrl-C ends it with one word."""
    from fedwild.display.progress import WorkDisplay

    try:
        with WorkDisplay(err, quiet) as display:
            yield display
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        raise typer.Exit(130) from None


def show_result(done: Run, as_json: bool, no_report: bool = False) -> None:
    """Print the final figures of a run, its folder and its report."""
    from fedwild.display.run_display import result_figures, result_table

    written = None if no_report else closing_report(done)
    if as_json:
        print(json.dumps(done.result))
        return
    figures = result_figures(done.result)
    if out.width < WIDTH_PER_FIGURE * len(figures):
        say("\n".join(f"{label}: {value}" for label, value in figures.items()))
    else:
        out.print(result_table(done.result))
    say(f"run folder: {done.path}")
    if written is not None:
        say(f"report: {written}")


def closing_report(done: Run) -> Path | None:
    """Write the report of a finished run. An error is printed as a warning."""
    if os.environ.get("FEDWILD_REPORT") == "no":
        return None
    try:
        from fedwild.results.report import write_report

        return write_report(done)
    except KeyboardInterrupt:
        print(
            f"interrupted: the run is finished; run `fedwild report {done.path}` to write its report.", file=sys.stderr
        )
        return None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print_warning(f"warning: the run is finished, but its report could not be written: {reason}")
        return None


@contextmanager
def shown_run(quiet: bool, tensorboard: bool, folder: Path | None = None) -> Iterator[Listener]:
    """Yield a listener that shows a run; Ctrl-C prints a sentence that says how to resume it.

    `tensorboard` also writes event files. `folder` is that of a run that exists already.
    """
    from fedwild.display.run_display import RunDisplay
    from fedwild.results.tracking import tracked

    display = RunDisplay(err, quiet)
    display.folder = "" if folder is None else str(folder)
    try:
        with display, tracked(display, tensorboard, folder) as listener:
            yield listener
    except KeyboardInterrupt:
        advice = f"run `fedwild resume {display.folder}` to continue after the last completed round"
        print(f"interrupted: {advice if display.folder else 'no run was started'}.", file=sys.stderr)
        raise typer.Exit(130) from None
