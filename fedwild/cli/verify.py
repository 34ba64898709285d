"""`fedwild verify`: check every file of run folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedwild.cli.options import Json, say
from fedwild.core.text import count


def verify(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that contain run folders.")
    ],
    as_json: Json = False,
) -> None:
    """Check every file of a run against its digest.

    One line per file. The exit code is 0 if all files are good and 1 if one is damaged. Nothing is written.

    Examples:

      fedwild verify runs/fedavg-digits-001

      fedwild verify runs --json
    """
    from fedwild.cli.track import find_folders
    from fedwild.runs.verify import verify_run

    rows = {folder: verify_run(folder) for folder in find_folders(folders)}
    damaged = sum(not row.good for checked in rows.values() for row in checked)
    if as_json:
        print(json.dumps({str(folder): [vars(row) for row in checked] for folder, checked in rows.items()}))
    else:
        for folder, checked in rows.items():
            for row in checked:
                say(f"{'good' if row.good else 'DAMAGED':<8}{folder / row.file}{': ' + row.text if row.text else ''}")
        files = count(sum(map(len, rows.values())), "file")
        say(f"{files} checked, {damaged} damaged" if damaged else f"{files} checked, all good")
    raise typer.Exit(1 if damaged else 0)
