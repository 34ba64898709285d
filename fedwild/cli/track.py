"""`fedwild track`: runs for TensorBoard, after the fact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedwild.cli.options import Json, PathOption, Quiet, out
from fedwild.core.errors import UserError
from fedwild.results.comparison.reading import run_folders

if TYPE_CHECKING:
    from fedwild.runs.folder import RunFolder


def track(
    folders: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, finished or not, or folders that hold some.")
    ],
    out_folder: Annotated[
        PathOption, typer.Option("--out", metavar="DIR", help="Where to make a folder for each run (RUN/tensorboard).")
    ] = None,
    clients: Annotated[bool, typer.Option("--clients", help="Each client's loss, too.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write runs' figures for TensorBoard, round by round: loss, metrics, seconds, bytes, and the settings.

    What was written there before is written anew. To watch a run while it goes, begin it with --tensorboard.

    Examples:

      fedwild track runs/* && tensorboard --logdir runs

      fedwild track runs/fedavg-digits-001 runs/fedov-digits-001 --out compare --clients
    """
    from fedwild.results.tracking import TENSORBOARD, file_writer, write_event_file
    from fedwild.runs.folder import RunFolder

    file_writer()
    runs = [RunFolder.open(folder) for folder in all_runs(folders)]
    if out_folder is None:
        written = [run.path / TENSORBOARD for run in runs]
    else:
        written = [out_folder / name for name in different_names(runs)]
    for run, folder in zip(runs, written, strict=True):
        if out_folder is None:
            in_peace(run)
        try:
            write_event_file(run, folder, clients)
        finally:
            run.unlock()
    if as_json:
        print(json.dumps({str(run.path): str(folder) for run, folder in zip(runs, written, strict=True)}))
    elif not quiet:
        logdir = out_folder or common(written)
        out.print("\n".join(map(str, written)), highlight=False, markup=False, soft_wrap=True)
        out.print(f"look at them: `tensorboard --logdir {logdir}`", highlight=False, markup=False, soft_wrap=True)


def all_runs(places: list[Path]) -> list[Path]:
    """The run folders that the places are or hold, each once; a place without any is named."""
    found: dict[Path, Path] = {}
    for place in places:
        # What is no folder of runs is opened as a run, which says what is wrong with it.
        for folder in (list(run_folders(place)) if place.is_dir() else []) or [place]:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def in_peace(run: RunFolder) -> None:
    """Make sure that no other process writes into the run's folder."""
    try:
        run.lock()
    except UserError as error:
        raise UserError(f"{error.problems[0]} Name another place with --out DIR.") from None
    except OSError as error:
        raise UserError(
            f"run folder {str(run.path)!r}: {error.strerror}. Name another place with --out DIR."
        ) from error


def different_names(runs: list[RunFolder]) -> list[str]:
    """What the runs' folders are called, if no two are called the same."""
    names = [run.path.resolve().name for run in runs]
    for i, name in enumerate(names):
        if name in names[:i]:
            first = runs[names.index(name)].path
            raise UserError(f"{str(first)!r} and {str(runs[i].path)!r} would both be {name!r} in --out: rename one.")
    return names


def common(folders: list[Path]) -> Path:
    """The folder that holds the runs of all these folders."""
    parents = [list(folder.parent.absolute().parents) for folder in folders]
    nearest = next(place for place in parents[0] if all(place in others for others in parents))
    here = Path.cwd()
    return nearest.relative_to(here) if nearest != here and nearest.is_relative_to(here) else nearest
