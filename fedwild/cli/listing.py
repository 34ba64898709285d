"""`fedwild list`: what can be named."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.text import Text

from fedwild.cli.options import (
    Json,
    out,
)
from fedwild.core.errors import UserError


def list_parts(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="methods, data, models, partitions, objectives, corrections, estimators, scores or settings.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """List what can be named, with one line and the parameters of each."""
    from fedwild.runs.listing import LISTS, rows_of

    if kind not in LISTS:
        raise UserError(f"list {kind!r} is not known. Available: {', '.join(LISTS)}.")
    rows = rows_of(kind)
    if as_json:
        print(json.dumps(rows, default=str))
        return
    for row in rows:
        out.print(Text.assemble((row["name"], "bold"), "  ", row["summary"]), soft_wrap=True)
        for p in row["parameters"]:
            allowed = f" ({p['allowed']})" if p["allowed"] else ""
            line = f"    {p['name']} = {json.dumps(p['default'])}  {p['type']}{allowed}: {p['description']}"
            out.print(line, highlight=False, markup=False, soft_wrap=True)
