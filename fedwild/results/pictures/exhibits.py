"""What a run's method wants shown (its exhibits): as plain values and as a figure, whatever the method is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwild.contract import BarExhibit, CurveExhibit, Exhibit, ImageExhibit, MapExhibit, TableExhibit
from fedwild.core.errors import UserError, unknown_name
from fedwild.core.text import percent
from fedwild.data import DataSettings
from fedwild.lifecycle.run import Run
from fedwild.results.pictures import drawing, sheet
from fedwild.results.pictures.drawing import COLOURS, LINE, RULE, SMALL, WIDTH, label
from fedwild.results.pictures.heat_map import HeatMap, draw_heat_map
from fedwild.results.pictures.sheet import Sheet, fill_rows, pixels
from fedwild.runs.events import without_nan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DIGITS = 4
# In inches.
MAX_HEIGHT, GAP, SECTION = 60.0, 0.25, 0.4
CURVE_WIDTH, CURVE_HEIGHT = 5.0, 2.6
BAR_WIDTH, BAR_HEIGHT = 5.0, 0.22


def figures(run: Run, section: str | None = None, titles: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Return the exhibits of a run's method as plain values: all, or those of a section or with a part of a title."""
    return [described(exhibit) for exhibit in exhibits_of(run, section, titles)]


def exhibits_of(run: Run, section: str | None = None, titles: Iterable[str] = ()) -> list[Exhibit]:
    """Return the exhibits of a finished run, or of the last checkpoint of an unfinished one."""
    method = run.settings.make_method()
    exhibits = list(method.exhibits(run.record()))
    if not exhibits:
        raise UserError(
            f"run {str(run.path)!r} has nothing to show: method {method.name!r} returns no exhibits for it."
        )
    sections = {exhibit.section for exhibit in exhibits}
    if section is not None and section not in sections:
        raise unknown_name("--section", section, sections)
    exhibits = [exhibit for exhibit in exhibits if section in (None, exhibit.section)]
    parts = list(titles)
    for part in parts:
        if not any(part in exhibit.title for exhibit in exhibits):
            raise unknown_name("--title", part, [exhibit.title for exhibit in exhibits])
    return [exhibit for exhibit in exhibits if not parts or any(part in exhibit.title for part in parts)]


def described(exhibit: Exhibit) -> dict[str, Any]:
    """Return plain, rounded values, for JSON; of images, their number and captions."""
    values = dict(vars(exhibit))
    if isinstance(exhibit, MapExhibit) and exhibit.values is not None:
        values["values"] = exhibit.values.double().numpy().round(DIGITS).tolist()
    if isinstance(exhibit, ImageExhibit):
        values["rows"] = {name: len(images) for name, images in exhibit.rows.items()}
    plain: dict[str, Any] = without_nan({"kind": type(exhibit).__name__.removesuffix("Exhibit").lower(), **values})
    return plain


def write(exhibits: Sequence[Exhibit], path: Path) -> int:
    """Draw exhibits into a PNG, SVG or PDF file, and return how many of them there was room for."""
    shown = exhibits[: count_fitting(exhibits)]
    drawing.write_figure(draw(shown), path)
    return len(shown)


def count_fitting(exhibits: Sequence[Exhibit]) -> int:
    """Return how many of the exhibits fit into a figure of MAX_HEIGHT, at least one."""
    return max(1, int((np.cumsum([block.height for block in blocks_of(exhibits)]) <= MAX_HEIGHT).sum()))


@drawing.styled()
def draw(exhibits: Sequence[Exhibit]) -> Figure:
    """Draw exhibits below each other, in their order, with a heading for each section."""
    from matplotlib.figure import Figure

    blocks = blocks_of(exhibits)
    top = total = sum(block.height for block in blocks)
    figure = Figure(figsize=(WIDTH, total))
    for block in blocks:
        if block.is_first:
            figure.text(0, top / total, label(block.exhibit.section, 80), fontsize=drawing.LARGE + 3, va="top")
        width, height = block.body.size
        bottom = top - block.above - height
        axes = figure.add_axes((0, bottom / total, width / WIDTH, height / total))
        block.body.draw(axes)
        drawing.add_title(axes, label(block.exhibit.title, 80), block.exhibit.text)
        top -= block.height
    return figure


@dataclass(frozen=True)
class Body:
    """What an exhibit shows below its title. Sizes are in inches."""

    size: tuple[float, float]
    """Width and height of the axes."""
    draw: Callable[[Axes], object]
    below: float = 0.0
    """The height of names below the axes."""


@dataclass(frozen=True)
class Block:
    """The part of a figure that shows one exhibit."""

    exhibit: Exhibit
    body: Body
    is_first: bool
    """Whether it is the first of its section, so that a heading stands above it."""

    @property
    def above(self) -> float:
        """The height of titles above the axes, in inches."""
        return drawing.title_height(self.exhibit.text) + SECTION * self.is_first

    @property
    def height(self) -> float:
        return self.above + self.body.size[1] + self.body.below + GAP


def blocks_of(exhibits: Sequence[Exhibit]) -> list[Block]:
    sections = [None, *(exhibit.section for exhibit in exhibits)]
    return [Block(one, body_of(one), one.section != before) for one, before in zip(exhibits, sections, strict=False)]


def body_of(exhibit: Exhibit) -> Body:
    match exhibit:
        case TableExhibit():
            return table_body(exhibit)
        case CurveExhibit():
            return Body((CURVE_WIDTH, CURVE_HEIGHT), partial(draw_curve, exhibit), below=3 * LINE)
        case BarExhibit():
            return Body((BAR_WIDTH, len(exhibit.bars) * BAR_HEIGHT), partial(draw_bars, exhibit))
        case ImageExhibit():
            return image_body(exhibit)
        case MapExhibit():
            table = heat_map_of(exhibit)
            return Body(table.size, partial(draw_map, table), table.below)
        case _:
            return Body((WIDTH, 0.01), lambda axes: axes.axis("off"))


def table_body(exhibit: TableExhibit) -> Body:
    """Return rows of text below a bold header; numbers are aligned to the right."""
    cells = [[label(str(cell), 40) for cell in row] for row in (exhibit.header, *exhibit.rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) * drawing.CHARACTER + 0.2 for column in columns]

    def draw(axes: Axes) -> None:
        axes.axis("off")
        axes.set(xlim=(0, sum(widths)), ylim=(len(cells), 0))
        axes.axhline(1, color=RULE, linewidth=0.8)
        for left, width, column in zip(np.cumsum([0, *widths]), widths, columns, strict=False):
            is_numeric = bool(column[1:]) and all(map(is_number, column[1:]))
            x, align = (left + width - 0.2, "right") if is_numeric else (left, "left")
            for row, cell in enumerate(column):
                weight = "normal" if row else "bold"
                axes.text(x, row + 0.5, cell, fontsize=SMALL, ha=align, va="center_baseline", fontweight=weight)

    return Body((sum(widths), len(cells) * LINE * 1.3), draw)


def draw_curve(exhibit: CurveExhibit, axes: Axes) -> None:
    """Draw lines over a common axis, distinguished by colour and line style."""
    from matplotlib.ticker import PercentFormatter

    for number, (name, points) in enumerate(exhibit.lines.items()):
        turn, colour = divmod(number, len(COLOURS))
        style = drawing.LINE_STYLES[turn % len(drawing.LINE_STYLES)]
        look: Any = {"linewidth": 1.4, "marker": "o" if len(points) <= 30 else None, "markersize": 3}
        x, y = np.asarray(points, dtype=float).reshape(-1, 2).T
        axes.plot(x, y, style, color=COLOURS[colour], label=label(name), **look)
    axes.set(xlabel=label(exhibit.x, 60), ylabel=label(exhibit.y, 40))
    axes.grid(True)
    if exhibit.percent:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    if len(exhibit.lines) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)


def draw_bars(exhibit: BarExhibit, axes: Axes) -> None:
    """Draw horizontal bars with their values."""
    names, values = list(exhibit.bars), list(exhibit.bars.values())
    bars = axes.barh(range(len(names)), values, 0.7, color=COLOURS[0])
    texts = [percent(value) if exhibit.percent else f"{value:.4g}" for value in values]
    axes.bar_label(bars, texts, padding=4, color=drawing.MUTED, fontsize=SMALL)
    axes.set(yticks=range(len(names)), yticklabels=[label(name) for name in names], xticks=())
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.12)
    axes.spines[["bottom", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.axvline(0, color=RULE, linewidth=0.8)


def image_body(exhibit: ImageExhibit) -> Body:
    """Return a contact sheet."""
    rows = exhibit.rows
    images = [pixels(x.float() / (1 if x.is_floating_point() else 255), DataSettings()) for x in rows.values()]
    made = Sheet(
        caption="",
        pictures=fill_rows(images, images[0].shape[1:3] if images else (1, 1)),
        row_names=list(rows),
        notes=[exhibit.captions.get(name, [""] * len(x)) for name, x in rows.items()] if exhibit.captions else (),
        filled=[len(x) for x in images],
        max_name=24,
    )
    image = np.asarray(sheet.draw(made))

    def draw(axes: Axes) -> None:
        axes.axis("off")
        axes.imshow(image, aspect="auto")

    height, width = image.shape[:2]
    return Body((width / drawing.SHEET_DPI, height / drawing.SHEET_DPI), draw)


def heat_map_of(exhibit: MapExhibit) -> HeatMap:
    values = np.zeros((1, 1)) if exhibit.values is None else exhibit.values.double().numpy()
    top = nice_top(float(np.nanmax(np.abs(values), initial=0.0)))
    digits = ".2f" if top <= 1 else ".3g"
    return HeatMap(
        values=values,
        rows=exhibit.rows or [str(row) for row in range(len(values))],
        columns=exhibit.columns,
        texts=[[f"{value:{digits}}" for value in row] for row in values.tolist()] if exhibit.columns else (),
        top=top,
    )


def draw_map(table: HeatMap, axes: Axes) -> None:
    """Draw a heat map with its scale to the right."""
    image = draw_heat_map(axes, table)
    width, height = table.size
    length = min(1.0, 1.5 / height)
    bar = axes.figure.colorbar(image, axes.inset_axes((1 + 0.12 / width, 1 - length, 0.1 / width, length)))
    bar.outline.set_visible(False)
    low, high = image.get_clim()
    bar.set_ticks(np.linspace(low or 0.0, high or 1.0, 3 if height > 0.6 else 2).tolist())


def nice_top(value: float) -> float:
    """Return the smallest of ..., 0.1, 0.2, 0.5, 1, 2, 5, ... that is not below a value; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9)))


def is_number(text: str) -> bool:
    """Whether a cell of a table holds a number, a percentage, or nothing."""
    try:
        float(text.removesuffix("%").strip() or 0)
    except ValueError:
        return text.strip() in ("-", "–")
    return True
