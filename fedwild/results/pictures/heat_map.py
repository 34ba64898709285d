"""A matrix of numbers as a heat map: the larger a number, the darker its cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedwild.results.pictures.drawing import CHARACTER, INK, LINE, MUTED, SMALL, add_title, label, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# In inches.
CELL_WIDTHS, CELL_HEIGHTS = (0.01, 0.56, 1.0), (0.01, 0.26)
MAX_WIDTH, MAX_HEIGHT = 7.5, 7.5
LINED_CELL = 0.08  # cells of at least this size have white lines between them
DARK, DARK_SIGNED = 0.62, 0.35  # cells further along the colours than this have white text


@dataclass(frozen=True)
class HeatMap:
    """Numbers with a name for each row and column."""

    values: NDArray[Any]
    """(rows, columns)."""
    rows: Sequence[str]
    columns: Sequence[str]
    """Without any, columns are numbered."""
    row_title: str = ""
    column_title: str = ""
    texts: Sequence[Sequence[str]] = ()
    """What is written in the cells, if all of it fits."""
    totals: Sequence[str] = ()
    """What is written to the right of each row."""
    top: float | None = None
    """The number with the darkest colour; None: the largest."""
    gamma: float = 1.0
    """Colours follow (value / top) ** gamma, if no number is negative; below 1, small numbers are easier to see."""
    last_apart: bool = False
    """Whether a line separates the last row and the last column."""

    @property
    def cell(self) -> tuple[float, float]:
        """Width and height of a cell in inches. Cells are wider than usual if the names of columns fit in then."""
        rows, columns = self.values.shape
        (least, usual, most), room = CELL_WIDTHS, MAX_WIDTH / columns
        wanted = self.name_width if usual < self.name_width <= min(most, room) else usual
        width, height = np.clip(room, least, wanted), np.clip(MAX_HEIGHT / rows, *CELL_HEIGHTS)
        return float(width), float(height)

    @property
    def name_width(self) -> float:
        """The width of the longest name of a column in inches."""
        return max((text_width(label(name)) for name in self.columns), default=0.0)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of all cells in inches."""
        (rows, columns), (width, height) = self.values.shape, self.cell
        return columns * width, rows * height

    @property
    def has_upright_names(self) -> bool:
        """Whether the names of columns are written from bottom to top, since they are wider than cells."""
        return self.name_width > self.cell[0]

    @property
    def below(self) -> float:
        """The height of what is written below the cells, in inches."""
        return (self.name_width if self.has_upright_names else LINE) + LINE * (2 if self.column_title else 1)

    def named(self, count: int, pitch: float) -> range:
        """Return which of the rows or columns get their names: all, or every n-th and the last one set apart."""
        step = int(np.ceil(LINE / pitch - 1e-9))
        return range((count - 1) % step if self.last_apart else 0, count, step)


def text_width(text: str) -> float:
    """Return about how wide a text is, in inches."""
    return len(text) * CHARACTER + 0.05


@styled()
def heat_map_figure(table: HeatMap, title: str, text: str) -> Figure:
    """Return a figure of one heat map, with a title and an explanation."""
    figure, axes = new_figure(table)
    draw_heat_map(axes, table)
    add_title(axes, title, text)
    return figure


def new_figure(table: HeatMap) -> tuple[Figure, Axes]:
    """Return a figure whose axes have the size of all cells."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=table.size)
    return figure, figure.add_axes((0, 0, 1, 1))


def draw_heat_map(axes: Axes, table: HeatMap) -> AxesImage:
    """Draw the matrix over the whole of the axes."""
    from matplotlib.colors import Normalize, PowerNorm

    rows, columns = table.values.shape
    width, height = table.cell
    top = table.top or float(np.nanmax(table.values, initial=0)) or 1.0
    signed = bool((table.values < 0).any())
    norm = Normalize(-top, top) if signed else PowerNorm(table.gamma, 0, top)
    image = axes.imshow(table.values, cmap="PuOr_r" if signed else "Blues", norm=norm, aspect="auto")
    axes.spines[:].set_visible(False)
    if min(width, height) >= LINED_CELL:
        axes.set_xticks(np.arange(columns - 1) + 0.5, minor=True)
        axes.set_yticks(np.arange(rows - 1) + 0.5, minor=True)
        axes.grid(which="minor", color="white", linewidth=1.2)
    axes.tick_params(which="both", length=0)
    if table.last_apart:
        axes.axhline(rows - 1.5, color=INK, linewidth=0.8)
        axes.axvline(columns - 1.5, color=INK, linewidth=0.8)
    write_names(axes, table)
    longest = max((text_width(text) for row in table.texts for text in row), default=width)
    if height >= LINE and longest < width:
        for (row, column), value in np.ndenumerate(table.values):
            is_dark = abs(norm(value) - 0.5) > DARK_SIGNED if signed else norm(value) > DARK
            look: Any = {"color": "white" if is_dark else INK, "ha": "center", "va": "center_baseline"}
            axes.text(column, row, table.texts[row][column], fontsize=SMALL, **look)
    return image


def write_names(axes: Axes, table: HeatMap) -> None:
    """Write names to the left and below, and totals to the right; where cells are small, every n-th."""
    rows, columns = table.values.shape
    width, height = table.cell
    shown = table.named(rows, height)
    axes.set_yticks(shown, [label(table.rows[row]) for row in shown])
    for row in shown if table.totals else ():
        place = ((1, row), (5, 0), ("axes fraction", "data"), "offset points")
        axes.annotate(table.totals[row], *place, color=MUTED, fontsize=SMALL, va="center_baseline")
    axes.set_xlabel(table.column_title)
    axes.set_ylabel(table.row_title)
    if table.columns:
        shown = table.named(columns, width if table.has_upright_names else max(width, LINE))
        angle = 90 if table.has_upright_names else 0
        axes.set_xticks(shown, [label(table.columns[column]) for column in shown], rotation=angle)
    else:
        axes.tick_params("x", which="major", length=3)
