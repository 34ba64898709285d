"""Commands that use a run's model: `fedwild evaluate`, `predict` and `name`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedwild.cli.options import (
    Folder,
    Json,
    Number,
    PathOption,
    Quiet,
    TrustCode,
    Words,
    Workers,
    err,
    number,
    option,
    out,
    real,
    say,
    whole,
    working,
)
from fedwild.core.errors import UserError
from fedwild.core.names import UNKNOWN_NAME
from fedwild.core.text import clean

if TYPE_CHECKING:
    from fedwild.api import Run

MAX_THREADS = 64
Accept = Annotated[
    Number,
    option("SHARE", "Move the threshold: the share of known validation samples to accept, such as 0.99."),
]
Threshold = Annotated[Number, option("SCORE", "Move the threshold to this unknown score.")]


def evaluate(
    folder: Folder,
    accept: Accept = None,
    threshold: Threshold = None,
    workers: Workers = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a run's model on its test split and show all figures.

    --accept and --threshold show what another threshold would give; the run does not change.
    """
    from fedwild.api import Run
    from fedwild.display.run_display import metrics_table
    from fedwild.runs.events import without_nan

    with working(quiet) as work:
        work.show("loading the data")
        evaluation = Run(folder).evaluate(whole(workers), work.show, accept=real(accept), threshold=real(threshold))
    if as_json:
        print(json.dumps(without_nan({"metrics": evaluation.metrics, "by": evaluation.by})))
    else:
        out.print(metrics_table(evaluation.metrics, evaluation.by))


def predict(
    folder: Folder,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Image files, .npy arrays, folders, patterns such as 'scans/*.png', or .csv files with a column path.",
        ),
    ],
    client: Annotated[Words, typer.Option(help="The client, for methods with a model per client.")] = None,
    accept: Accept = None,
    threshold: Threshold = None,
    file: Annotated[PathOption, option("FILE", "Write the answers to a .csv, .jsonl or .json file.", "--out")] = None,
    workers: Annotated[Number, option("N", "Threads that decode images (default: one per core).")] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Answer with a class or with 'unknown' for each image.

    'unusual' is the share of known validation samples with a lower unknown score. Files that cannot be used are listed
    at the end; the others are answered, and the exit code is 1.

    Examples:

      fedwild predict runs/fedavg-digits-001 zero.png nine.png

      fedwild predict runs/fedavg-digits-001 ~/scans --out answers.csv

      fedwild predict runs/fedavg-digits-001 '~/scans/**/*.png' --accept 0.99
    """
    from fedwild.api import Run
    from fedwild.lifecycle.predict import answer_files, find_files
    from fedwild.results.predictions import check_file, to_json, write_predictions

    if file is not None:
        check_file(file)
    count = number("--workers", workers, os.cpu_count() or 1, range(1, MAX_THREADS + 1))
    files, run = find_files(inputs), Run(folder)
    limits = {"accept": real(accept), "threshold": real(threshold)}
    with working(quiet) as work:
        rows = []
        for row in answer_files(run, files, client, workers=count, **limits):
            rows.append(row)
            work.show("answering", len(rows), len(files))
    if file is not None:
        write_predictions(rows, file)
    if as_json:
        print(to_json(rows), end="")
    elif file is None:
        print_answers([row for row in rows if "error" not in row])
    else:
        unknown = sum(row.get("answer") == UNKNOWN_NAME for row in rows)
        say(f"{len(rows)} files, {unknown} of them unknown; answers written to {file}")
    damaged = [row["error"] for row in rows if "error" in row]
    for reason in damaged:
        say(f"no answer: {clean(reason)}", err)
    if damaged:
        raise typer.Exit(1)


def print_answers(rows: list[dict[str, Any]]) -> None:
    """Print a table with a row per file."""
    table = Table()
    for heading in ("file", "answer", "best class"):
        table.add_column(heading, overflow="fold")
    for heading in ("probability", "unknown score", "unusual"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            Text(row["file"]),
            Text(row["answer"]),
            Text(row["best_class"]),
            f"{row['probability']:.3f}",
            f"{row['unknown']:.4f}",
            "" if row["percentile"] is None else f"{100 * row['percentile']:.1f} %",
        )
    if rows:
        limit = rows[0]["threshold"]
        out.print(table)
        say("no threshold: everything is accepted" if limit is None else f"unknown above the threshold {limit:.4f}")


def name_class(
    folder: Folder,
    old: Annotated[Words, typer.Argument(metavar="CLASS", help="A class that the run discovered.")] = None,
    new: Annotated[Words, typer.Argument(metavar="NAME", help="Its new name.")] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Name a class that a run discovered.

    Without CLASS, the discovered classes are listed. `fedwild show novel RUN` draws samples of them. Afterwards
    `predict`, `evaluate`, `show` and runs that start from this one use the new name. You can rename a class again.
    Classes with labels keep their names.

    Examples:

      fedwild name runs/gal-digits-001

      fedwild name runs/gal-digits-001 novel-1 melanoma
    """
    from fedwild.api import Run

    if old is None:
        list_novel(Run(folder), as_json)
        return
    if new is None:
        raise UserError(f"class {old!r} needs a name: `fedwild name {folder} {old} NAME`.")
    named = Run(folder).name_class(old, new)
    if as_json:
        print(json.dumps({"run": str(folder), "old": old, "new": named.name, "class": vars(named)}))
    else:
        say(f"{old} is now called {named.name}")


def list_novel(run: Run, as_json: bool) -> None:
    """Print the discovered classes, with the samples and clients in which they were found."""
    found = run.novel_classes()
    if as_json:
        print(json.dumps({"run": str(run.path), "classes": [vars(entry) for entry in found]}))
        return
    table = Table()
    table.add_column("name", overflow="fold")
    for heading in ("stage", "samples", "clients"):
        table.add_column(heading, justify="right")
    for entry in found:
        table.add_row(Text(entry.name), str(entry.stage), str(sum(entry.samples.values())), str(len(entry.samples)))
    out.print(table)
