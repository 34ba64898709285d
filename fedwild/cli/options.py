"""What commands share: their options, how numbers are read, and how a run is shown and ended."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer
from rich.console import Console

from fedwild.core.defaults import DEFAULT_METHOD
from fedwild.core.errors import UserError

if TYPE_CHECKING:
    from fedwild.api import Run
    from fedwild.display.progress import WorkDisplay
    from fedwild.display.run_display import RunDisplay

NARROW = 72
WIDER = 14
out = Console()
err = Console(stderr=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, as the last line of standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/fedavg-digits-001.")]
Words = Optional[str]  # noqa: UP045  (typer reads the annotation at run time)
# Numbers are read as text, so that the config can say which setting a wrong one is for, and what is allowed.
Number = Optional[str]  # noqa: UP045
PathOption = Optional[Path]  # noqa: UP045
Names = Optional[list[str]]  # noqa: UP045
Workers = Annotated[Number, typer.Option(metavar="N", help="Worker processes (default: one per core); 0 = none.")]
ConfigFile = Annotated[PathOption, typer.Argument(metavar="CONFIG.toml", help="Settings; flags win over them.")]
Method = Annotated[
    Words, typer.Option(metavar="NAME", help=f"See `fedwild list methods` ({DEFAULT_METHOD}); or package.module:Class.")
]
Data = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        metavar="NAME|PATH",
        help="See `fedwild list data` (digits), or a path to your own; repeat for several domains.",
    ),
]
Partition = Annotated[
    Words,
    typer.Option(metavar="NAME", help="How data is dealt to clients: dirichlet:0.1, classes:2, iid ... (dirichlet)"),
]
Model = Annotated[
    Words, typer.Option(metavar="NAME", help="See `fedwild list models` (by data); or package.module:Class.")
]
Clients = Annotated[Number, typer.Option(metavar="N", help="Number of clients (10, or as many as the data has).")]
Rounds = Annotated[Number, typer.Option(metavar="N", help="Communication rounds, for methods that have them.")]
Seed = Annotated[Number, typer.Option(metavar="N", help="Same seed, same bits (0).")]
StartFrom = Annotated[
    Words,
    typer.Option(metavar="RUN", help="A finished run whose global model to begin with; classes match by name."),
]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Any setting, e.g. method.lr=0.1; repeatable."),
]
Engine = Annotated[
    Words, typer.Option(metavar="NAME", help="Where clients run: local (processes of this machine) or ray (a cluster).")
]
Superlink = Annotated[
    Words, typer.Option(metavar="HOST:PORT", help="A SuperLink that runs on this machine already (one is started).")
]
Listen = Annotated[Words, typer.Option(metavar="HOST:PORT", help="Where sites find the coordinator (127.0.0.1:8443).")]
Certificates = Annotated[
    PathOption, typer.Option(metavar="DIR", help="From `fedwild flower keys`: TLS, and only registered sites (no TLS).")
]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write figures for TensorBoard into RUN/tensorboard while it goes.")
]
NoReport = Annotated[
    bool, typer.Option("--no-report", help="Write no report.html at the end (FEDWILD_REPORT=no: never).")
]
OwnClient = Annotated[
    Words,
    typer.Option(
        "--client", metavar="NAME", help="Whose model, for methods with one per client, on its own test data."
    ),
]


def whole(text: str | None) -> int | None:
    """A number as typed; what is none goes on as it is, for the config to refuse by name."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return text  # type: ignore[return-value]


def real(text: str | None) -> float | None:
    """The same for a number with decimals."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text  # type: ignore[return-value]


def pairs(option: str, texts: list[str]) -> dict[str, str]:
    """OWN=NAME texts as a table."""
    table = {}
    for text in texts:
        own, equals, name = text.partition("=")
        if not equals or not own.strip() or not name.strip():
            raise UserError(f"{option} {text} is not allowed: write OWN=NAME, such as zwei=2.")
        table[own.strip()] = name.strip()
    return table


def place(superlink: str | None, listen: str | None, certificates: Path | None) -> dict[str, str]:
    """Where real sites are reached, as settings of the engine."""
    folder = None if certificates is None else str(certificates.resolve())
    options = {"superlink": superlink, "listen": listen, "certificates": folder}
    return {key: value for key, value in options.items() if value is not None}


def number(option: str, text: str | None, default: int, allowed: range) -> int:
    """A number as typed that no config checks; what is not allowed is refused."""
    value = default if text is None else whole(text)
    if isinstance(value, int) and value in allowed:
        return value
    some = f"from {allowed[0]} to {allowed[-1]}"
    steps = f", in steps of {allowed.step}" if allowed.step > 1 else ""
    raise UserError(f"{option} {text} is not allowed: it must be a whole number {some}{steps}.")


def refuse(options: Mapping[str, object], reason: str) -> None:
    """Refuse options that were given but mean nothing here."""
    for option, value in options.items():
        if value not in (None, [], False):
            words = value if isinstance(value, list) else [] if value is True else [value]
            raise UserError(f"{' '.join(map(str, [option, *words]))} is not allowed: it goes {reason}.")


@contextmanager
def working(quiet: bool = False) -> Iterator[WorkDisplay]:
    """Show how far a command is that makes no run; Ctrl-C ends it in a word."""
    from fedwild.display.progress import WorkDisplay

    try:
        with WorkDisplay(err, quiet) as display:
            yield display
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        raise typer.Exit(130) from None


def show_result(done: Run, as_json: bool, no_report: bool = False) -> None:
    """The closing figures of a run, and where its folder and its report are."""
    from fedwild.display.run_display import extra_columns, result_lines, result_table

    written = None if no_report else closing_report(done)
    if as_json:
        print(json.dumps(done.result))
        return
    if out.width < NARROW + WIDER * extra_columns(done.metrics):
        out.print("\n".join(result_lines(done.result)), highlight=False, markup=False, soft_wrap=True)
    else:
        out.print(result_table(done.result))
    out.print(f"run folder: {done.path}", highlight=False, markup=False, soft_wrap=True)
    if written is not None:
        out.print(f"report: {written}", highlight=False, markup=False, soft_wrap=True)


def closing_report(done: Run) -> Path | None:
    """Write the report of a run that has just ended. Whatever is wrong with it does not spoil the run."""
    if os.environ.get("FEDWILD_REPORT") == "no":
        return None
    try:
        from fedwild.results.report import write_report

        return write_report(done)
    except KeyboardInterrupt:
        print(f"interrupted: the run is finished, and `fedwild report {done.path}` writes its report.", file=sys.stderr)
        return None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"warning: the run is finished, but its report could not be written: {reason}", file=sys.stderr)
        return None


@contextmanager
def interruptible(display: RunDisplay) -> Iterator[RunDisplay]:
    """Show a run; Ctrl-C becomes a sentence that says how to go on."""
    try:
        with display:
            yield display
    except KeyboardInterrupt:
        goes_on = f"`fedwild resume {display.folder}` goes on from the last finished round"
        print(f"interrupted: {goes_on if display.folder else 'no run had begun'}.", file=sys.stderr)
        raise typer.Exit(130) from None
