"""Which cells of the papers' tables can be run here, and what is missing for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from fedwild.core.text import count
from fedwild.data.sources import difference_from_catalogue
from fedwild.results.papers import Cell, Table
from fedwild.results.papers.library import available_name, data_names
from fedwild.results.tables.model import Cell as Shown
from fedwild.results.tables.model import ResultTable, words

KINDS = ("data", "method", "figure")

HEADINGS = ("table", "cells", "runnable", *KINDS, "what it shows")


def kind_of(cell: Cell) -> str:
    """Return runnable, or the kind of what is missing: data, method or figure."""
    return "runnable" if cell.waiting is None else cell.waiting.partition(":")[0]


def tables_listed(tables: Iterable[Table]) -> ResultTable:
    """Return a row for each table, with numbers of cells."""
    rows = []
    for table in tables:
        counts = Counter(kind_of(cell) for cell in table.cells)
        numbers = [len(table.cells), counts["runnable"], *(counts[kind] for kind in KINDS)]
        rows.append((words(table.name), *(_count(number) for number in numbers), words(table.caption)))
    return ResultTable("cells that are runnable here, and cells that wait for ...", HEADINGS, tuple(rows))


def waiting_lines(tables: Iterable[Table]) -> list[str]:
    """Return what is missing, with the number of cells, the most frequent first."""
    reasons = Counter(
        reason for table in tables for cell in table.cells if cell.waiting for reason in cell.waiting.split("; ")
    )
    return [f"{reason} ({count(cells, 'cell')})" for reason, cells in reasons.most_common()]


def stand_in_lines(tables: Iterable[Table]) -> list[str]:
    """Return which generated data replaces missing data, with the number of runnable cells that use it."""
    used = Counter(
        f"{mine} for {name}"
        for table in tables
        for cell in table.cells
        if cell.waiting is None and cell.settings is not None
        for name in data_names(cell.settings)
        if (mine := available_name(name)) != name
    )
    return [f"{text} ({count(cells, 'cell')})" for text, cells in used.most_common()]


def partial_lines(tables: Iterable[Table]) -> list[str]:
    """Return which data sets of this machine are not complete, with the number of runnable cells that use them."""
    used = Counter(
        name
        for table in tables
        for cell in table.cells
        if cell.waiting is None and cell.settings is not None
        for name in data_names(cell.settings)
    )
    differences = {name: difference_from_catalogue(name) for name in used}
    return [f"{text} ({count(used[name], 'cell')})" for name, text in differences.items() if text]


def cells_listed(table: Table) -> ResultTable:
    """Return a row for each combination of all keys except the last, whose values are listed as runnable or waiting."""
    last = list(table.keys)[-1]
    groups: dict[tuple[tuple[str, str], ...], dict[str, list[str]]] = {}
    for cell in table.cells:
        row = tuple((key, value) for key, value in cell.keys.items() if key != last)
        groups.setdefault(row, {}).setdefault(cell.waiting or "runnable", []).append(cell.keys[last])
    keys = [key for key in table.keys if key != last]
    rows = []
    for row, group in groups.items():
        runnable = ", ".join(group.pop("runnable", []))
        waits = (f"{', '.join(values)} ({without_kinds(reason)})" for reason, values in group.items())
        rows.append((*(words(dict(row)[key]) for key in keys), words(runnable), words("; ".join(waits))))
    return ResultTable(
        f"{table.name}: {table.caption}", (*keys, f"runnable here ({last})", "waiting"), tuple(rows), (table.note,)
    )


def table_json(table: Table) -> dict[str, Any]:
    """Return a table as plain values."""
    return {
        "table": table.name,
        "number": table.number,
        "caption": table.caption,
        "note": table.note,
        "keys": table.keys,
        "cells": [
            {"keys": c.keys, "paper": c.value, "deviation": c.deviation, "unit": c.unit, "waiting": c.waiting}
            for c in table.cells
        ],
    }


def without_kinds(reason: str) -> str:
    """Return what is missing, without its kinds."""
    return "; ".join(part.partition(": ")[2] or part for part in reason.split("; "))


def _count(number: int) -> Shown:
    return Shown(str(number) if number else "", values=(("", number),))
