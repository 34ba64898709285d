"""Writing the report of a run to a file."""

from __future__ import annotations

import os
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.core.storage import write_atomically
from fedwild.lifecycle.run import Run
from fedwild.results.report.facts import read_facts
from fedwild.results.report.page import page_of

NAME = "report.html"


def write_report(run: Run | str | Path, path: str | Path | None = None, workers: int | None = None) -> Path:
    """Write the report of a run, finished or not, and return its path: by default `report.html` in the run folder.

    The page loads nothing else: neither from the network nor from the run folder. `workers` is the number of processes
    for the evaluation; by default, a long evaluation uses several and a short one none.
    """
    run = run if isinstance(run, Run) else Run(run)
    target = run.path / NAME if path is None else Path(path)
    check_target(target)
    text = page_of(read_facts(run, workers))
    try:
        # A device or a pipe that the user names must not be replaced by a file.
        if path is not None and target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", errors="replace")
        else:
            write_atomically(
                Path(os.path.realpath(target)), text.encode("utf-8", "replace"), durable=False, private=path is None
            )
    except OSError as error:
        raise UserError(f"--out {str(target)!r} cannot be written: {error.strerror or error}.") from None
    return target


def check_target(path: Path) -> None:
    """Raise `UserError` for a path that cannot be written, before any work is done."""
    if path.is_dir():
        raise UserError(f"--out {str(path)!r} is a folder: name a file, such as {str(path / NAME)!r}.")
    if not path.parent.is_dir():
        raise UserError(f"--out {str(path)!r}: the folder {str(path.parent)!r} does not exist.")
