"""What the run's method wants shown: its exhibits, whatever the method is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from fedwild.contract import BarExhibit, CurveExhibit, Exhibit, ImageExhibit, MapExhibit, TableExhibit
from fedwild.core.errors import UserError
from fedwild.core.text import count, percent
from fedwild.data import DataSettings
from fedwild.results.pictures.exhibits import is_number, nice_top
from fedwild.results.pictures.sheet import pixels
from fedwild.results.report.charts.bars import bar_chart
from fedwild.results.report.charts.heat import Heat, heat_map
from fedwild.results.report.charts.lines import Series, line_chart
from fedwild.results.report.charts.raster import Thumb, labelled, thumbs
from fedwild.results.report.charts.scale import value_range
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import details, figure, grid, table
from fedwild.results.report.markup import Html, joined, prose, tag

MAX_OPEN, MAX_DRAWN = 6, 30
"""In a section, further exhibits are closed at first; even more are not drawn."""
MAX_ROWS, MAX_IMAGES = 40, 24
"""The maximum number of rows of images, and of images in a row."""
MAX_BESIDE = 12
"""A map with more columns takes the whole width of the page."""


def draw(facts: Facts, section: str) -> Html:
    """Return the exhibits of a section in their order; nothing if there are none."""
    exhibits = [exhibit for exhibit in facts.exhibits if exhibit.section == section]
    if not exhibits:
        return Html()
    figures = [exhibit_figure(facts, exhibit) for exhibit in exhibits[:MAX_DRAWN]]
    parts = [grid(figures[:MAX_OPEN])]
    if len(figures) > MAX_OPEN:
        parts.append(details(f"{len(figures) - MAX_OPEN} more", grid(figures[MAX_OPEN:])))
    if len(exhibits) > MAX_DRAWN:
        omitted = count(len(exhibits) - MAX_DRAWN, "exhibit")
        command = f"`fedwild show exhibits {facts.run.path}`"
        parts.append(tag("p", prose(f"{omitted} not drawn here: use {command}."), class_="note"))
    return joined(parts)


def exhibit_figure(facts: Facts, exhibit: Exhibit) -> Html:
    wide = isinstance(exhibit, ImageExhibit)
    if isinstance(exhibit, MapExhibit) and exhibit.values is not None:
        wide = exhibit.values.shape[-1] > MAX_BESIDE
    return figure(exhibit.title, lambda: content_of(facts, exhibit), exhibit.text, wide)


def content_of(facts: Facts, exhibit: Exhibit) -> Html:
    """Return the table, chart or images of an exhibit; nothing for one that is its text alone."""
    match exhibit:
        case TableExhibit():
            return table(exhibit.header, exhibit.rows, text_columns(exhibit.rows))
        case CurveExhibit():
            return curves(facts, exhibit)
        case BarExhibit():
            values = [("", list(exhibit.bars.values()))]
            to_text = percent if exhibit.percent else "{:.4g}".format
            return bar_chart(list(exhibit.bars), values, exhibit.title, to_text)
        case ImageExhibit():
            return images(exhibit)
        case MapExhibit():
            return map_of(exhibit)
    return Html()


def text_columns(rows: Sequence[Sequence[str]]) -> int:
    """Return the number of columns before the last ones that hold numbers only; at least one."""
    columns = list(zip(*rows, strict=True))
    while len(columns) > 1 and all(is_number(str(cell)) for cell in columns[-1]):
        columns.pop()
    return max(1, len(columns))


def curves(facts: Facts, exhibit: CurveExhibit) -> Html:
    """Return the lines; over rounds, with the borders of phases."""
    series = [Series(name, [x for x, _ in line], [y for _, y in line]) for name, line in exhibit.lines.items()]
    low, high = value_range([y for s in series for y in s.y])
    first = min((x for s in series for x in s.x), default=0.0)
    borders = [border for border in facts.history.borders if border[0] >= first] if exhibit.x == "round" else []
    # The axis begins at 0 unless that would flatten the lines.
    include_zero = exhibit.percent or min(abs(low), abs(high)) <= high - low
    return line_chart(
        series, exhibit.x, exhibit.y, is_percent=exhibit.percent, include_zero=include_zero, borders=borders
    )


def images(exhibit: ImageExhibit) -> Html:
    rows = []
    for label, x in islice(exhibit.rows.items(), MAX_ROWS):
        shown = x[:MAX_IMAGES]
        pictures = pixels(shown if shown.is_floating_point() else shown / 255, DataSettings())
        captions = [*exhibit.captions.get(label, ()), *[""] * len(shown)]
        row = [
            Thumb(picture, text, "", f"{label}: {text}" if text else label)
            for picture, text in zip(pictures, captions, strict=False)
        ]
        name = label if len(x) <= MAX_IMAGES else f"{label} ({MAX_IMAGES} of {len(x)})"
        rows.append(labelled(name, thumbs(row)))
    return joined(rows)


def map_of(exhibit: MapExhibit) -> Html:
    """Return a heat map. Cells with 0, a negative value or no value have no colour."""
    if exhibit.values is None or not exhibit.values.numel():
        raise UserError("there are no values to draw.")
    values = exhibit.values.double().numpy()
    values = np.where(np.isfinite(values), values, np.nan)
    top = nice_top(float(np.nanmax(np.abs(values), initial=0.0)))
    digits = ".2f" if top <= 1 else ".3g"

    def names(given: Sequence[str], number: int) -> Sequence[str]:
        return given or [str(i + 1) for i in range(number)]

    heat = Heat(
        rows=names(exhibit.rows, values.shape[0]),
        columns=names(exhibit.columns, values.shape[1]),
        shades=np.nan_to_num(values / top),
        texts=[["-" if np.isnan(value) else f"{value:{digits}}" for value in row] for row in values.tolist()],
    )
    return heat_map(heat, exhibit.title)
