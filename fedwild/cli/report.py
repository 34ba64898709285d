"""The command that writes a run's report: `fedwild report`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fedwild.cli.options import Folder, Json, Number, PathOption, Quiet, number, out


def report(
    folder: Folder,
    path: Annotated[
        PathOption, typer.Option("--out", metavar="FILE.html", help="The file to write (RUN/report.html).")
    ] = None,
    workers: Annotated[
        Number, typer.Option(metavar="N", help="Worker processes for the evaluation (some if it is long); 0 = none.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a run's report: one HTML page with its figures, curves, mistakes and costs, which opens anywhere.

    The page needs neither network nor the run's folder, so it can be sent as it is; it shows test samples. The run need
    not be finished. Where its data is not here, the page is made of its log and its final figures alone.

    Examples:

      fedwild report runs/fedavg-digits-001

      fedwild report runs/gal-digits-001 --out gal.html --json
    """
    from fedwild.results.report import write_report

    count = None if workers is None else number("--workers", workers, 0, range(257))
    written = write_report(folder, path, count)
    if as_json:
        print(json.dumps({"run": str(folder), "report": str(written), "bytes": written.stat().st_size}))
    elif not quiet:
        out.print(f"report: {written}", highlight=False, markup=False, soft_wrap=True)
