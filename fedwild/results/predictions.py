"""Files with a row per answer: .csv, .jsonl (a JSON object per line) or .json (one list)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError
from fedwild.results.output import write_output
from fedwild.runs.events import without_nan

Row = Mapping[str, Any]
COLUMNS = ("file", "answer", "best_class", "probability", "unknown", "percentile", "threshold")
RANKED = tuple(f"{rank}_{what}" for rank in ("second", "third") for what in ("class", "probability"))


def to_csv(rows: Iterable[Row]) -> str:
    """Return the main columns, the three most probable classes, and why a file has no answer."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*COLUMNS, *RANKED, "error"])
    for row in rows:
        others = [value for entry in row.get("top", [])[1:] for value in (entry["class"], entry["probability"])]
        others += [""] * (len(RANKED) - len(others))
        writer.writerow([*("" if row.get(key) is None else row[key] for key in COLUMNS), *others, row.get("error", "")])
    return text.getvalue()


def to_jsonl(rows: Iterable[Row]) -> str:
    return "".join(f"{json.dumps(without_nan(row))}\n" for row in rows)


def to_json(rows: Iterable[Row]) -> str:
    return json.dumps(without_nan(list(rows))) + "\n"


FORMATS: dict[str, Callable[[Iterable[Row]], str]] = {".csv": to_csv, ".jsonl": to_jsonl, ".json": to_json}


def check_file(path: Path) -> None:
    """Reject a file whose ending names no format, or whose folder does not exist."""
    if path.suffix not in FORMATS:
        raise UserError(f"--out {str(path)!r} is not allowed: the file must end in {', '.join(FORMATS)}.")
    if not path.parent.is_dir():
        raise UserError(f"--out {str(path)!r} cannot be written: folder {str(path.parent)!r} does not exist.")


def write_predictions(rows: Iterable[Row], path: Path) -> None:
    """Write all rows, or nothing."""
    write_output(path, FORMATS[path.suffix](rows).encode(errors="replace"))
