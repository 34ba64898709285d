"""Commands over several runs: `fedwild compare` and `fedwild sweep`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Optional

import typer

from fedwild.options import Json, Names, out

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
    from fedwild.comparison import compare as compared
    from fedwild.comparison import find_runs
    from fedwild.tables import format_of, print_table, write_table

    for file in files or []:
        format_of(file)
    comparison = compared(find_runs(runs), metrics or (), by or ())
    table = comparison.table()
    for file in files or []:
        write_table(table, file)
    if as_json:
        print(json.dumps({**comparison.described(), "files": [str(file) for file in files or []]}))
        return
    print_table(out, table)
    for file in files or []:
        out.print(f"table written to {file}", highlight=False, markup=False, soft_wrap=True)
