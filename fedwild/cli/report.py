"""`fedwild report`: write the report of a run."""

from __future__ import annotations

import json
from typing import Annotated

from fedwild.cli.options import Folder, Json, Number, PathOption, Quiet, TrustCode, number, option, say


def report(
    folder: Folder,
    path: Annotated[PathOption, option("FILE.html", "The file to write (RUN/report.html).", "--out")] = None,
    workers: Annotated[
        Number, option("N", "Worker processes for the evaluation (only if it takes long); 0 = none.")
    ] = None,
    trust_code: TrustCode = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the report of a run: one HTML page with its metrics, curves, mistakes and costs.

    The page loads nothing else, so you can send it to anyone; it contains test samples. The run need not be finished.
    If its data is not on this machine, the page shows only the log and the final metrics.

    Examples:

      fedwild report runs/fedavg-digits-001

      fedwild report runs/fedavg-digits-001 --out digits.html --json
    """
    from fedwild.results.report import write_report

    count = None if workers is None else number("--workers", workers, 0, range(257))
    written = write_report(folder, path, count)
    if as_json:
        print(json.dumps({"run": str(folder), "report": str(written), "bytes": written.stat().st_size}))
    elif not quiet:
        say(f"report: {written}")
