"""The user's CSV: columns path (relative to the CSV) and label, optionally client and split (train or test)."""

from __future__ import annotations

import csv
from pathlib import Path

from fedwild.core.errors import UserError
from fedwild.data.sources.listing import Item, load_items
from fedwild.data.sources.raw import Raw


def load_csv(path: Path, size: int | None, channels: int | None) -> Raw:
    """Return the images that the CSV lists."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = columns
            missing = [name for name in ("path", "label") if name not in columns]
            if missing:
                raise UserError(
                    f"{path} has no column {' and '.join(missing)}: its columns are {', '.join(columns) or 'none'}."
                )
            items = [_item(path, number, row) for number, row in enumerate(reader, start=2)]
    except (UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"{path} cannot be read as CSV: {problem}.") from None
    if not items:
        raise UserError(f"{path} lists no images.")
    return load_items(items, path.stem, size, channels)


def _item(path: Path, number: int, row: dict[str, str | None]) -> Item:
    cells = {key: (row.get(key) or "").strip() for key in ("path", "label", "client", "split")}
    for key in ("path", "label"):
        if not cells[key]:
            raise UserError(f"{path}, line {number}: {key} is empty.")
    if cells["split"] not in ("", "train", "test"):
        raise UserError(f"{path}, line {number}: split = {cells['split']!r} is not allowed: it must be train or test.")
    file = path.parent / cells["path"]
    if not file.is_file():
        raise UserError(f"{path}, line {number}: {file} does not exist.")
    return Item(file, cells["label"], cells["client"], cells["split"])
