"""The command line: all commands, and how errors become sentences."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from fedwild import __version__
from fedwild.cli.compare import compare, sweep
from fedwild.cli.data import data_app
from fedwild.cli.listing import list_parts
from fedwild.cli.models import evaluate, name_class, predict
from fedwild.cli.report import report
from fedwild.cli.reproduce import reproduce
from fedwild.cli.runs import resume, run, welcome
from fedwild.cli.show import show_app
from fedwild.cli.site import audit, policy, site_app
from fedwild.cli.sites import coordinate, flower_app
from fedwild.cli.track import track
from fedwild.cli.trust import sign, trust
from fedwild.cli.verify import verify
from fedwild.core.errors import DamageWarning, UserError
from fedwild.core.text import clean

# Otherwise typer escapes brackets for rich, and the help shows `\\[required]`.
typer.core.HAS_RICH = False

app = typer.Typer(
    name="fedwild",
    help="Open-world federated learning: clients train a common model that can answer 'unknown'.\n\n"
    "Start with `fedwild run`, which trains a model on embedded data in less than a minute.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    run,
    resume,
    welcome,
    evaluate,
    predict,
    report,
    verify,
    sign,
    trust,
    coordinate,
    policy,
    audit,
    compare,
    sweep,
    reproduce,
    track,
):
    app.command()(command)
app.command("name")(name_class)
app.command("list")(list_parts)
app.add_typer(data_app, name="data")
app.add_typer(show_app, name="show")
app.add_typer(site_app, name="site")
app.add_typer(flower_app, name="flower")

MAX_ERROR = 10_000
"""The maximum length of an error message; some list everything that is allowed."""
# The error class for invalid options. Its module differs between versions of typer, its place in this order does not.
UsageProblem: Any = typer.BadParameter.__mro__[2]


@app.callback(invoke_without_command=True)
def without_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())
    else:
        return
    raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A `UserError` is printed, one line per problem, and the exit code is 2."""
    # A console script does not search the current folder, which may have the user's own network or method.
    sys.path.insert(0, os.getcwd())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Print a question mark for a character that the terminal cannot show, instead of failing.
            stream.reconfigure(errors="replace")
    with warnings.catch_warnings():
        warnings.showwarning = partial(warn, warnings.showwarning)
        run_app(arguments)


def run_app(arguments: list[str] | None) -> None:
    """Run a command and turn errors into sentences."""
    try:
        sys.exit(app(args=arguments, standalone_mode=False) or 0)
    except UserError as error:
        complain(*error.problems)
    except UsageProblem as error:
        complain(error.format_message())
    except SystemExit as end:
        # Typer ends with 1 if the reader, such as `head`, has all that it wants.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def warn(others: Callable[..., None], message: Warning | str, category: type[Warning], *place: Any) -> None:
    """Print a warning about damaged files as one sentence; `others` shows all other warnings."""
    if issubclass(category, DamageWarning):
        print(f"warning: {clean(str(message), MAX_ERROR)}", file=sys.stderr)
    else:
        others(message, category, *place)


def complain(*problems: str) -> NoReturn:
    for problem in problems:
        print(f"error: {clean(problem, MAX_ERROR)}", file=sys.stderr)
    sys.exit(2)
