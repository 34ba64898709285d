"""Commands that use a run's model: `fedwild evaluate`, `predict` and `name`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedwild.cli.options import Folder, Json, Quiet, TrustCode, Words, Workers, out, say, whole, working
from fedwild.core.errors import UserError

if TYPE_CHECKING:
    from fedwild.api import Run


def evaluate(
    folder: Folder, workers: Workers = None, trust_code: TrustCode = False, as_json: Json = False, quiet: Quiet = False
) -> None:
    """Measure a run's model on its test split and show all figures."""
    from fedwild.api import Run
    from fedwild.display.run_display import metrics_table
    from fedwild.runs.events import without_nan

    with working(quiet) as work:
        work.show("loading the data")
        evaluation = Run(folder).evaluate(whole(workers), work.show)
    if as_json:
        print(json.dumps(without_nan({"metrics": evaluation.metrics, "by": evaluation.by})))
    else:
        out.print(metrics_table(evaluation.metrics, evaluation.by))


def predict(
    folder: Folder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files, or .npy arrays.")],
    client: Annotated[Words, typer.Option(help="The client, for methods with a model per client.")] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
) -> None:
    """Answer with a class or with 'unknown' for each image."""
    from fedwild.api import Run
    from fedwild.lifecycle.predict import answer_files

    rows = answer_files(Run(folder), images, client)
    if as_json:
        print(json.dumps(rows))
        return
    table = Table()
    for heading in ("file", "answer", "best class"):
        table.add_column(heading, overflow="fold")
    for heading in ("probability", "unknown score", "threshold"):
        table.add_column(heading, justify="right")
    for row in rows:
        limit = "none" if row["threshold"] is None else f"{row['threshold']:.4f}"
        table.add_row(
            Text(row["file"]),
            Text(row["answer"]),
            Text(row["best_class"]),
            f"{row['probability']:.3f}",
            f"{row['unknown']:.4f}",
            limit,
        )
    out.print(table)


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
