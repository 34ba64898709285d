"""Reading the figures of a table: a line of text per row, and one word per figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

ILLEGIBLE = "?"


def figures_of(block: Mapping[str, Any]) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the keys and the word of every figure.

    `fixed` has the keys of the whole block. A line has a value for each key of `rows`, then a figure for each
    combination of the values in `columns`; the last key changes fastest.
    """
    rows, columns = block.get("rows", []), block.get("columns", {})
    heads = [dict(zip(columns, values, strict=True)) for values in product(*columns.values())]
    for line in block["cells"].strip().splitlines():
        words = line.split()
        names, figures = words[: len(rows)], words[len(rows) :]
        for head, figure in zip(heads, figures, strict=True):
            yield {**block.get("fixed", {}), **dict(zip(rows, names, strict=True)), **head}, figure


def value_and_deviation(figure: str) -> tuple[float, float | None]:
    """Return the numbers of `40.0±1.7`, or of `40.0` alone."""
    value, plus_minus, deviation = figure.partition("±")
    return float(value), float(deviation) if plus_minus else None
