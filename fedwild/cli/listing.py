"""`fedwild list`: what a config can name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.text import Text

from fedwild.cli.options import Json, Words, out, say


def list_parts(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="methods, data, models, partitions, objectives, corrections, aggregations, estimators, scores or "
            "settings.",
        ),
    ],
    name: Annotated[Words, typer.Argument(metavar="NAME", help="Show this one with its settings.")] = None,
    as_json: Json = False,
) -> None:
    """List what a config can name, one line each; with NAME, show the settings of one.

    \b
    Examples:
      fedwild list methods
      fedwild list methods fedavg
      fedwild list settings federation
    """
    from fedwild.runs.listing import list_kind

    rows = list_kind(kind, name)
    if as_json:
        print(json.dumps(rows, default=str))
    elif name is not None:
        show_one(rows[0])
    else:
        width = max(len(row["name"]) for row in rows)
        for row in rows:
            out.print(Text.assemble((f"{row['name']:<{width}}", "bold"), "  ", row["summary"]), soft_wrap=True)
        say(f"\nSettings of one of them: fedwild list {kind} NAME")


def show_one(row: dict[str, Any]) -> None:
    """Print the summary, the details and the settings of one entry; shared settings come last."""
    out.print(Text.assemble((row["name"], "bold"), "  ", row["summary"]), soft_wrap=True)
    for line in row["details"]:
        say(line)
    own = [parameter for parameter in row["parameters"] if not parameter.get("shared")]
    shared = [parameter for parameter in row["parameters"] if parameter.get("shared")]
    show_settings("Settings:", own)
    show_settings("Settings of local training, which most methods have:", shared)


def show_settings(title: str, parameters: Iterable[dict[str, Any]]) -> None:
    """Print one line per setting: its default, type, limits and description."""
    for number, parameter in enumerate(parameters):
        if number == 0:
            say(f"\n{title}")
        allowed = f" ({parameter['allowed']})" if parameter["allowed"] else ""
        default = json.dumps(parameter["default"], default=str)
        say(f"  {parameter['name']} = {default}  {parameter['type']}{allowed}: {parameter['description']}")
