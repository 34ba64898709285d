"""Reading the papers' files.

Each paper is a folder: `paper.toml`, which names its tables in order, and a file for each table. A table has one
block of figures, or several under `blocks` (see `grid`). Paper, table and block can each set `settings`, `measure`,
`unit` and `waiting` for all their cells. Under `keys` they set the same for cells where a key has a certain value,
with the settings inline. Later layers override earlier ones: paper, table, block, values of keys.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from fedwild.core.errors import unknown_name
from fedwild.results.papers.cells import Cell, Paper, Table
from fedwild.results.papers.composing import Layer, layers_of, measure_of, settings_of, unit_of, waiting_of
from fedwild.results.papers.grid import ILLEGIBLE, figures_of, value_and_deviation
from fedwild.results.papers.missing import missing_data

NAMES = ("fedov", "fedpd", "fedoss", "gal", "gains")


def papers() -> list[Paper]:
    """Return all papers with their tables; each call checks again which data is missing."""
    return [_paper(name) for name in NAMES]


def tables() -> list[Table]:
    """Return all tables of all papers."""
    return [table for paper in papers() for table in paper.tables]


def table(name: str) -> Table:
    """Return one table, such as fedov/table1."""
    names = {f"{paper}/{id}": (paper, id) for paper in NAMES for id in _read(paper, "paper")["tables"]}
    if name not in names:
        raise unknown_name("table", name, names)
    return _table(*names[name])


@cache
def _read(paper: str, file: str) -> dict[str, Any]:
    return tomllib.loads(files("fedwild.results.papers").joinpath(paper, f"{file}.toml").read_text(encoding="utf-8"))


def _paper(name: str) -> Paper:
    file = _read(name, "paper")
    return Paper(
        id=name,
        title=file["title"],
        authors=file["authors"],
        venue=file["venue"],
        note=_paragraph(file.get("note", "")),
        tables=tuple(_table(name, id) for id in file["tables"]),
    )


def _table(paper: str, id: str) -> Table:
    above, file = _read(paper, "paper"), _read(paper, id)
    cells: list[Cell] = []
    illegible: list[dict[str, str]] = []
    for block in file.get("blocks", [file]):
        levels = [above, file] if block is file else [above, file, block]
        for keys, figure in figures_of(block):
            if figure == ILLEGIBLE:
                illegible.append(keys)
            else:
                cells.append(_cell(keys, figure, levels))
    return Table(
        paper=paper,
        id=id,
        number=file.get("number", ""),
        caption=file["caption"],
        spread=file.get("spread", above.get("spread", "")),
        note=_paragraph(file.get("note", "")),
        cells=tuple(cells),
        illegible=tuple(illegible),
    )


def _cell(keys: dict[str, str], figure: str, levels: list[Layer]) -> Cell:
    layers = layers_of(levels, keys)
    value, deviation = value_and_deviation(figure)
    unit, settings, waiting = unit_of(layers), settings_of(layers), waiting_of(layers)
    return Cell(
        keys=keys,
        value=value,
        deviation=deviation,
        unit=unit,
        measure=measure_of(layers, unit),
        settings=None if waiting else settings,
        waiting=waiting or missing_data(settings),
    )


def _paragraph(text: str) -> str:
    """Return text without the line breaks of the file."""
    return " ".join(text.split())
