"""Writing a run's report to a file."""

from __future__ import annotations

import os
from pathlib import Path

from fedwild.api import Run
from fedwild.core.errors import UserError
from fedwild.core.payload import write_atomically
from fedwild.results.report.facts import facts_of
from fedwild.results.report.page import page_of

NAME = "report.html"


def write_report(run: Run | str | Path, path: str | Path | None = None, workers: int | None = None) -> Path:
    """Write the report of a run, finished or not, and return the file: `report.html` in its folder, unless named.

    The page needs nothing else: neither network nor the run's folder. `workers` are processes for the evaluation;
    without a number there are some only if it is a long one.
    """
    run = run if isinstance(run, Run) else Run(run)
    target = run.path / NAME if path is None else Path(path)
    check_target(target)
    text = page_of(facts_of(run, workers))
    try:
        # A device or a pipe must not be replaced by a file.
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8", errors="replace")
        else:
            write_atomically(Path(os.path.realpath(target)), text.encode("utf-8", "replace"), durable=False)
    except OSError as error:
        raise UserError(f"--out {str(target)!r} cannot be written: {error.strerror or error}.") from None
    return target


def check_target(path: Path) -> None:
    """Refuse before the work what would fail after it."""
    if path.is_dir():
        raise UserError(f"--out {str(path)!r} is a folder: name a file, such as {str(path / NAME)!r}.")
    if not path.parent.is_dir():
        raise UserError(f"--out {str(path)!r}: the folder {str(path.parent)!r} does not exist.")
