"""`fedwild track`: write event files for TensorBoard from the logs of runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedwild.cli.options import Json, PathOption, Quiet, option, say
from fedwild.core.errors import UserError

if TYPE_CHECKING:
    from fedwild.runs.folder import RunFolder


def track(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, finished or not, or folders that contain some.")
    ],
    out_folder: Annotated[
        PathOption, option("DIR", "Create a folder for each run in DIR (RUN/tensorboard).", "--out")
    ] = None,
    clients: Annotated[bool, typer.Option("--clients", help="Include the loss of each client.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write runs for TensorBoard: loss, metrics, seconds and bytes by round, and the settings.

    Existing event files are replaced. To follow a run while it trains, start it with --tensorboard.

    Examples:

      fedwild track runs/* && tensorboard --logdir runs

      fedwild track runs/fedavg-digits-001 runs/fedavg-digits-002 --out compare --clients
    """
    from fedwild.results.tracking import TENSORBOARD, file_writer, write_event_file
    from fedwild.runs.folder import RunFolder

    file_writer()
    runs = [RunFolder.open(folder) for folder in find_folders(folders)]
    if out_folder is None:
        written = [run.path / TENSORBOARD for run in runs]
    else:
        written = [out_folder / name for name in distinct_names(runs)]
    for run, folder in zip(runs, written, strict=True):
        if out_folder is None:
            lock(run)
        try:
            write_event_file(run, folder, clients)
        finally:
            run.unlock()
    if as_json:
        print(json.dumps({str(run.path): str(folder) for run, folder in zip(runs, written, strict=True)}))
    elif not quiet:
        say("\n".join(map(str, written)))
        say(f"to view them: `tensorboard --logdir {out_folder or common_folder(written)}`")


def find_folders(places: list[Path]) -> list[Path]:
    """Return the run folders that the places are or contain, each once."""
    from fedwild.results.comparison.reading import run_folders

    found: dict[Path, Path] = {}
    for place in places:
        # A place without runs is opened as a run, which gives the error message.
        for folder in (list(run_folders(place)) if place.is_dir() else []) or [place]:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def lock(run: RunFolder) -> None:
    """Lock the run folder. Raise `UserError` if another process uses it."""
    try:
        run.lock()
    except UserError as error:
        raise UserError(f"{error.problems[0]} Choose another folder with --out DIR.") from None
    except OSError as error:
        raise UserError(
            f"run folder {str(run.path)!r}: {error.strerror}. Choose another folder with --out DIR."
        ) from error


def distinct_names(runs: list[RunFolder]) -> list[str]:
    """Return the names of the run folders. Raise `UserError` if two are equal."""
    names = [run.path.resolve().name for run in runs]
    for i, name in enumerate(names):
        if name in names[:i]:
            first = runs[names.index(name)].path
            raise UserError(f"{str(first)!r} and {str(runs[i].path)!r} would both be {name!r} in --out: rename one.")
    return names


def common_folder(folders: list[Path]) -> Path:
    """Return the innermost folder that contains the runs of all these folders."""
    nearest = Path(os.path.commonpath([folder.parent.absolute().parent for folder in folders]))
    here = Path.cwd()
    return nearest.relative_to(here) if nearest != here and nearest.is_relative_to(here) else nearest
