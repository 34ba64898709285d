"""Who holds how many samples of which class: as numbers, in the terminal and as a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedwild.data.dataset import Dataset
from fedwild.data.split import Split
from fedwild.pictures.drawing import cut, write_png
from fedwild.pictures.heat_map import NAME_LENGTH, HeatMap, draw

_SHADES = " ░▒▓█"
_MAX_ROWS = 40
_MAX_COLUMNS = 24


def class_counts(
    dataset: Dataset, split: Split, parts: Sequence[str] = ("train", "validation", "unlabelled")
) -> np.ndarray:
    """How many samples of each class each client holds in these parts: (clients, classes) int64."""
    labels, classes = dataset.y_train.numpy(), len(dataset.classes)
    counts = np.zeros((len(split.clients), classes), dtype=np.int64)
    for row, client in enumerate(split.clients):
        for part in parts:
            counts[row] += np.bincount(labels[getattr(client, part)], minlength=classes)
    return counts


@dataclass(frozen=True)
class _Grid:
    """A picture's cells: counts (rows, columns) with a name for each row and column."""

    counts: np.ndarray
    rows: list[str]
    columns: list[str]

    def shrunk(self, max_rows: int, max_columns: int) -> _Grid:
        """Neighbouring clients and classes added up until the grid fits."""
        rows, row_starts = _merged(self.rows, max_rows)
        columns, column_starts = _merged(self.columns, max_columns)
        counts = np.add.reduceat(np.add.reduceat(self.counts, row_starts, axis=0), column_starts, axis=1)
        return _Grid(counts, rows, columns)


def terminal_picture(dataset: Dataset, split: Split, width: int = 100) -> Group:
    """Clients as rows, classes as columns, shaded by count; many of either are added up in groups."""
    whole = _grid(dataset, split)
    grid = whole.shrunk(_MAX_ROWS, _MAX_COLUMNS)
    top = max(1, int(grid.counts.max()))
    digits = len(str(top))
    cells = [max(len(name), digits + 2) + 1 for name in grid.columns]
    roomy = max(len(name) for name in grid.rows) + sum(cells) + 10 <= width
    table = Table(box=None, pad_edge=False, padding=(0, 1 if roomy else 0, 0, 0))
    table.add_column("", no_wrap=True)
    for name in grid.columns:
        table.add_column(Text(name) if roomy else "", justify="right", no_wrap=True)
    table.add_column("total", justify="right", no_wrap=True)
    for name, row in zip(grid.rows, grid.counts, strict=True):
        shades = [_cell(int(count), top, digits if roomy else 0) for count in row]
        table.add_row(Text(f"{name} "), *shades, Text(f" {row.sum()}", style="bold"))
    lines = [_summary(whole, split)]
    if not roomy:
        lines.append("columns: " + ", ".join(grid.columns))
    if grid.counts.shape != whole.counts.shape:
        lines.append("neighbouring clients or classes are added up to fit.")
    return Group(table, *(Text(line, style="dim") for line in lines))


def described(dataset: Dataset, split: Split) -> dict[str, Any]:
    """The picture in figures: the classes' roles, and what every client has of each class and for which use."""
    return {
        "clients": [client.name for client in split.clients],
        "classes": list(dataset.classes),
        "known": list(split.known),
        "novel": list(split.novel),
        "unknown": list(split.unknown),
        "newcomers": list(split.newcomers),
        "brought": dict(split.brought),
        "counts": class_counts(dataset, split).tolist(),
        "samples": {
            client.name: {part: len(getattr(client, part)) for part in ("train", "validation", "unlabelled", "test")}
            for client in split.clients
        },
        "test": len(split.test),
        "public": len(split.public),
    }


def png_picture(dataset: Dataset, split: Split, path: str | Path) -> Path:
    """A heat map with names and, where there is room, counts, written to `path`."""
    grid = _grid(dataset, split)
    table = HeatMap(
        title=[_summary(grid, split)],
        rows=grid.rows,
        columns=grid.columns,
        shades=(grid.counts / max(1, int(grid.counts.max()))) ** 0.5,
        texts=[[str(count) if count else "" for count in row] for row in grid.counts.tolist()],
        totals=[str(total) for total in grid.counts.sum(1).tolist()],
    )
    write_png(draw(table), Path(path))
    return Path(path)


def _grid(dataset: Dataset, split: Split) -> _Grid:
    """Only classes that clients may hold: known ones, then novel ones, then those that newcomers bring."""
    held = dict.fromkeys(name for client in split.clients for name in client.known)
    brought = [name for name in held if name not in split.known and name not in split.novel]
    names = [*split.known, *split.novel, *brought]
    counts = class_counts(dataset, split)[:, [dataset.classes.index(name) for name in names]]
    columns = [*split.known, *(f"{name}?" for name in split.novel), *(f"{name}+" for name in brought)]
    return _Grid(counts, [client.name for client in split.clients], columns)


def _merged(names: list[str], limit: int) -> tuple[list[str], list[int]]:
    """Names of groups of neighbours, at most `limit`, and where each group starts."""
    step = -(-len(names) // limit)
    starts = list(range(0, len(names), step))
    if step == 1:
        return [cut(name, NAME_LENGTH) for name in names], starts
    ends = [min(start + step, len(names)) - 1 for start in starts]
    return [f"{cut(names[a])}..{cut(names[b])}" for a, b in zip(starts, ends, strict=True)], starts


def _cell(count: int, top: int, digits: int) -> Text:
    """A shade, with the count in so many digits; without any, the shade alone."""
    level = 0 if not count else max(1, round((count / top) ** 0.5 * (len(_SHADES) - 1)))
    shade = _SHADES[level] if level else "·"
    return Text(f"{count or '':>{digits}} {shade}" if digits else shade * 2)


def _summary(grid: _Grid, split: Split) -> str:
    """One line of figures; '?' marks classes whose labels no client sees, '+' those that newcomers bring."""
    sizes, held = grid.counts.sum(1), (grid.counts > 0).sum(1)
    return (
        f"{len(grid.rows)} clients, {int(sizes.sum())} samples; per client {sizes.min()} to {sizes.max()} "
        f"(median {int(np.median(sizes))}), {held.min()} to {held.max()} of {len(grid.columns)} classes; "
        f"{len(split.known)} known, {len(split.novel)} novel{' (?)' if split.novel else ''}, "
        f"{len(split.unknown)} unknown{f', {len(split.brought)} brought (+)' if split.brought else ''}"
    )
