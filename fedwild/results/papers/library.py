"""Reading the papers' files, and which of their data is missing on this machine.

Each paper is a folder: `paper.toml`, which names its tables in order, and a file for each table. A table has one
block of figures, or several under `blocks` (see `figures_of`). Paper, table and block can each set `settings`,
`measure`, `unit`, `seeds`, `mean_of` and `waiting` for all their cells. Under `keys` they set the same for cells where
a key has a certain value, with the settings inline. Later layers override earlier ones: paper, table, block, values of
keys. A cell with `mean_of` is the mean over the cells that have these values of keys (`*`: any), and its other keys.
The run of a cell with `begins_with` starts from the model of the run of the cell that has these values of keys, and
its other keys. A file with `curves` is a figure of the paper.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from itertools import product
from typing import Any

from fedwild.core.errors import unknown_name
from fedwild.core.layers import merge
from fedwild.data.sources import DATASETS, why_missing
from fedwild.data.sources.builtin import is_synthetic
from fedwild.results.papers.cells import Cell, Curves, Measure, Paper, Table
from fedwild.runs.config import NAMED

NAMES = ("fedov", "fedpd", "fedoss", "gal", "gains")
Layer = Mapping[str, Any]
# The keys of a layer that are not settings.
NOT_SETTINGS = ("measure", "unit", "waiting", "seeds", "mean_of", "begins_with")
# Figures of a run are shares.
FACTORS = {"%": 100.0}
ILLEGIBLE = "?"
ANY = "*"
# A figure of a row that the paper does not have, or a point of a curve, whose number the text does not give.
NOT_PRINTED = "-"


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
    means: list[dict[str, str] | None] = []
    illegible: list[dict[str, str]] = []
    for block in file.get("blocks", [file]):
        levels = [above, file] if block is file else [above, file, block]
        for keys, figure in figures_of(block):
            if figure == ILLEGIBLE:
                illegible.append(keys)
            else:
                layers = layers_of(levels, keys)
                before = last_of(layers, "begins_with", None)
                earlier = settings_of(layers_of(levels, {**keys, **before})) if before else None
                cells.append(continued(_cell(keys, figure, layers), earlier))
                means.append(last_of(layers, "mean_of", None))
    single = [cell for cell, mean in zip(cells, means, strict=True) if mean is None]
    return Table(
        paper=paper,
        id=id,
        number=file.get("number", ""),
        caption=file["caption"],
        spread=file.get("spread", above.get("spread", "")),
        note=_paragraph(file.get("note", "")),
        cells=tuple(mean_cell(cell, mean, single) if mean else cell for cell, mean in zip(cells, means, strict=True)),
        illegible=tuple(illegible),
        curves=Curves(**file["curves"]) if "curves" in file else None,
    )


def _cell(keys: dict[str, str], figure: str, layers: list[Layer]) -> Cell:
    value, deviation = value_and_deviation(figure)
    unit, settings, waiting = last_of(layers, "unit", "%"), settings_of(layers), waiting_of(layers)
    return Cell(
        keys=keys,
        value=value,
        deviation=deviation,
        unit=unit,
        measure=measure_of(layers, unit),
        settings=None if waiting else settings,
        waiting=waiting or missing_data(settings),
        seeds=tuple(last_of(layers, "seeds", ())),
    )


def continued(cell: Cell, earlier: dict[str, Any] | None) -> Cell:
    """Return the cell of a run that starts from an earlier one, if there is one, which counts as the first round."""
    measure = cell.measure
    if earlier is None or measure is None or measure.round is None or cell.settings is None:
        return replace(cell, begins_with=earlier)
    if measure.round == 1:
        return replace(cell, settings=earlier, measure=replace(measure, round=None))
    return replace(cell, begins_with=earlier, measure=replace(measure, round=measure.round - 1))


def mean_cell(cell: Cell, mean: Mapping[str, str], cells: Iterable[Cell]) -> Cell:
    """Return a cell as the mean over those cells that have the keys in `mean`, and its other keys."""
    wanted = {**cell.keys, **mean}
    parts = tuple(one for one in cells if all(wanted[key] in (ANY, value) for key, value in one.keys.items()))
    waiting = dict.fromkeys(reason for part in parts if part.waiting for reason in part.waiting.split("; "))
    return replace(cell, settings=None, waiting="; ".join(waiting) or None, parts=parts)


def _paragraph(text: str) -> str:
    """Return text without the line breaks of the file."""
    return " ".join(text.split())


def layers_of(levels: Sequence[Layer], keys: Mapping[str, str]) -> list[Layer]:
    """Return the layers for all cells of paper, table and block, then those for the values of the cell's keys."""
    layers: list[Layer] = []
    for level in levels:
        own = {key: level[key] for key in NOT_SETTINGS if key in level}
        layers.append({**level.get("settings", {}), **own})
    for key, value in keys.items():
        defined = [values[value] for level in levels if value in (values := level.get("keys", {}).get(key, {}))]
        if not defined:
            raise ValueError(f"{key} = {value} is not defined")
        layers += defined
    return layers


def settings_of(layers: Iterable[Layer]) -> dict[str, Any]:
    """Return the merged settings of all layers; as in a config, a component with another name loses its settings."""
    settings = ({key: value for key, value in layer.items() if key not in NOT_SETTINGS} for layer in layers)
    return merge(*settings, named=NAMED)


def last_of(layers: Iterable[Layer], key: str, default: Any) -> Any:
    """Return the last value of a key in the layers, or the default."""
    return [default, *(layer[key] for layer in layers if key in layer)][-1]


def measure_of(layers: Iterable[Layer], unit: str) -> Measure | None:
    """Return the merged measure of all layers; None if no layer names a figure."""
    merged: dict[str, Any] = {}
    for layer in layers:
        measure = layer.get("measure", {})
        merged |= {"figures": [measure]} if isinstance(measure, str) else measure
    if "figures" not in merged:
        return None
    several = len(merged["figures"]) > 1
    return Measure(
        tuple(merged["figures"]),
        merged.get("join", "mean"),
        tuple(merged.get("weights", ())) if several else (),
        merged.get("part"),
        merged.get("over"),
        FACTORS.get(unit, 1.0),
        merged.get("round"),
    )


def waiting_of(layers: Iterable[Layer]) -> str | None:
    """Return everything that is missing, as one text."""
    reasons = dict.fromkeys(layer["waiting"] for layer in layers if "waiting" in layer)
    return "; ".join(reasons) or None


def figures_of(block: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the keys and the word of every figure.

    `fixed` has the keys of the whole block. A line has a value for each key of `rows`, then a figure for each
    combination of the values in `columns`; the last key changes fastest. Without lines, there are the points of curves
    for each combination.
    """
    rows, columns = block.get("rows", []), block.get("columns", {})
    heads = [dict(zip(columns, values, strict=True)) for values in product(*columns.values())]
    if "cells" not in block:
        yield from (({**block.get("fixed", {}), **head}, NOT_PRINTED) for head in heads)
        return
    for line in block["cells"].strip().splitlines():
        words = line.split()
        names, figures = words[: len(rows)], words[len(rows) :]
        for head, figure in zip(heads, figures, strict=True):
            yield {**block.get("fixed", {}), **dict(zip(rows, names, strict=True)), **head}, figure


def value_and_deviation(figure: str) -> tuple[float | None, float | None]:
    """Return the numbers of `40.0±1.7`, or of `40.0` alone; none for `-`."""
    if figure == NOT_PRINTED:
        return None, None
    value, plus_minus, deviation = figure.partition("±")
    return float(value), float(deviation) if plus_minus else None


def data_names(settings: Mapping[str, Any]) -> list[str]:
    """Return the names of all data sets of a run, each once: its own and those of newcomers."""
    data = settings.get("data", {})
    name = data.get("name", "digits")
    newcomers = [newcomer["name"] for newcomer in data.get("newcomers", {}).values()]
    return list(dict.fromkeys([*([name] if isinstance(name, str) else name), *newcomers]))


def available_name(name: str) -> str:
    """Return the name of a data set, or of its generated stand-in if it has one and is missing here."""
    stand_in = DATASETS[name].stand_in if name in DATASETS else None
    return stand_in if stand_in and is_missing(name) else name


def missing_data(settings: Mapping[str, Any]) -> str | None:
    """Return a text that names the missing data; None if all data, or its generated stand-in, is available."""
    reasons = [reason for name in data_names(settings) if (reason := _why_missing(available_name(name)))]
    return "; ".join(f"data: {reason}" for reason in reasons) or None


def is_missing(name: str) -> bool:
    """Return whether a data set is missing on this machine."""
    return _why_missing(name) is not None


def _why_missing(name: str) -> str | None:
    if is_synthetic(name):
        return None
    if name not in DATASETS:
        return f"{name} is not a data set of fedwild"
    way = why_missing(name)
    return f"{name} is not on this machine ({way})" if way else None
