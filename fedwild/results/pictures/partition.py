"""How many samples of each class each client holds: as plain values, in the terminal and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedwild.core.text import count, cut
from fedwild.data.dataset import Dataset
from fedwild.data.split import Split
from fedwild.results.pictures.heat_map import HeatMap, heat_map_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHADES = " ░▒▓█"
MAX_ROWS, MAX_COLUMNS = 40, 24  # in the terminal
MAX_CELLS = 250  # of a figure, in each direction
MAX_NAME, MAX_GROUP_NAME = 22, 14


def class_counts(
    dataset: Dataset, split: Split, parts: Sequence[str] = ("train", "validation", "unlabelled")
) -> np.ndarray:
    """Return the number of samples of each class that each client holds in these parts: (clients, classes) int64."""
    labels, classes = dataset.y_train.numpy(), len(dataset.classes)
    counts = np.zeros((len(split.clients), classes), dtype=np.int64)
    for row, client in enumerate(split.clients):
        for part in parts:
            counts[row] += np.bincount(labels[getattr(client, part)], minlength=classes)
    return counts


@dataclass(frozen=True)
class Grid:
    """Counts (rows, columns) with a name for each row and column."""

    counts: np.ndarray
    rows: list[str]
    columns: list[str]

    @classmethod
    def of(cls, dataset: Dataset, split: Split) -> Grid:
        """Return the classes that clients may hold: known ones, novel ones ("?"), those of newcomers ("+")."""
        held = dict.fromkeys(name for client in split.clients for name in client.known)
        brought = [name for name in held if name not in split.known and name not in split.novel]
        names = [*split.known, *split.novel, *brought]
        counts = class_counts(dataset, split)[:, [dataset.classes.index(name) for name in names]]
        columns = [*split.known, *(f"{name}?" for name in split.novel), *(f"{name}+" for name in brought)]
        return cls(counts, [client.name for client in split.clients], columns)

    def shrunk(self, max_rows: int, max_columns: int) -> Grid:
        """Return a grid that fits: counts of neighbouring clients and classes are added up."""
        rows, row_starts = group_names(self.rows, max_rows)
        columns, column_starts = group_names(self.columns, max_columns)
        counts = np.add.reduceat(np.add.reduceat(self.counts, row_starts, axis=0), column_starts, axis=1)
        return Grid(counts, rows, columns)


def described(dataset: Dataset, split: Split) -> dict[str, Any]:
    """Return plain values, for JSON: the roles of classes, and each client's samples by class and by use."""
    return {
        "clients": [client.name for client in split.clients],
        "classes": list(dataset.classes),
        **{key: list(getattr(split, key)) for key in ("known", "novel", "unknown", "newcomers")},
        "brought": dict(split.newcomer_classes),
        "counts": class_counts(dataset, split).tolist(),
        "samples": {
            client.name: {part: len(getattr(client, part)) for part in ("train", "validation", "unlabelled", "test")}
            for client in split.clients
        },
        "test": len(split.test),
        "public": len(split.public),
    }


def terminal_picture(dataset: Dataset, split: Split, width: int = 100) -> Group:
    """Return a table with a row per client and a column per class, shaded by count."""
    whole = Grid.of(dataset, split)
    grid = whole.shrunk(MAX_ROWS, MAX_COLUMNS)
    top = max(1, int(grid.counts.max()))
    digits = len(str(top))
    cells = [max(len(name), digits + 2) + 1 for name in grid.columns]
    is_roomy = max(len(name) for name in grid.rows) + sum(cells) + 10 <= width
    table = Table(box=None, pad_edge=False, padding=(0, 1 if is_roomy else 0, 0, 0))
    table.add_column("", no_wrap=True)
    for name in grid.columns:
        table.add_column(Text(name) if is_roomy else "", justify="right", no_wrap=True)
    table.add_column("total", justify="right", no_wrap=True)
    for name, row in zip(grid.rows, grid.counts, strict=True):
        shades = [shaded(int(number), top, digits if is_roomy else 0) for number in row]
        table.add_row(Text(f"{name} "), *shades, Text(f" {row.sum()}", style="bold"))
    lines = [summary(whole, split)]
    if not is_roomy:
        lines.append("columns: " + ", ".join(grid.columns))
    if grid.counts.shape != whole.counts.shape:
        lines.append("Neighbouring clients or classes are added up to fit.")
    return Group(table, *(Text(line, style="dim") for line in lines))


def draw(dataset: Dataset, split: Split) -> Figure:
    """Draw the counts as a heat map, shaded by their square roots; totals are to the right of each row."""
    whole = Grid.of(dataset, split)
    grid = whole.shrunk(MAX_CELLS, MAX_CELLS)
    table = HeatMap(
        values=grid.counts,
        rows=grid.rows,
        columns=grid.columns,
        row_title="client",
        column_title="class",
        texts=[[str(number) if number else "" for number in row] for row in grid.counts.tolist()],
        totals=[str(total) for total in grid.counts.sum(axis=1).tolist()],
        gamma=0.5,
    )
    return heat_map_figure(table, "Samples of each class at each client", summary(whole, split))


def group_names(names: list[str], limit: int) -> tuple[list[str], list[int]]:
    """Return the names of at most `limit` groups of neighbours, and where each group starts."""
    step = -(-len(names) // limit)
    starts = list(range(0, len(names), step))
    if step == 1:
        return [cut(name, MAX_NAME) for name in names], starts
    ends = [min(start + step, len(names)) - 1 for start in starts]
    ranges = [(cut(names[a], MAX_GROUP_NAME), cut(names[b], MAX_GROUP_NAME)) for a, b in zip(starts, ends, strict=True)]
    return [f"{first}..{last}" for first, last in ranges], starts


def shaded(number: int, top: int, digits: int) -> Text:
    """Return a shade after the count, which has this number of digits; with 0 digits, the shade alone."""
    level = 0 if not number else max(1, round((number / top) ** 0.5 * (len(SHADES) - 1)))
    shade = SHADES[level] if level else "·"
    return Text(f"{number or '':>{digits}} {shade}" if digits else shade * 2)


def summary(grid: Grid, split: Split) -> str:
    """Return the counts in one line; "?" marks classes whose labels no client sees, "+" those of newcomers."""
    sizes, held = grid.counts.sum(axis=1), (grid.counts > 0).sum(axis=1)
    classes = count(len(grid.columns), "class", "classes")
    brought = f", {len(split.newcomer_classes)} brought (+)" if split.newcomer_classes else ""
    return (
        f"{count(len(grid.rows), 'client')}, {count(int(sizes.sum()), 'sample')}; "
        f"per client {sizes.min()} to {sizes.max()} "
        f"(median {int(np.median(sizes))}), {held.min()} to {held.max()} of {classes}; "
        f"{len(split.known)} known, {len(split.novel)} novel{' (?)' if split.novel else ''}, "
        f"{len(split.unknown)} unknown{brought}"
    )
