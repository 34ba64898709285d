"""Our curves of a paper's figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedwild.core.errors import UserError
from fedwild.results.papers import Curves
from fedwild.results.pictures.drawing import COLOURS, MARKERS, WIDTH, add_title, styled
from fedwild.results.reproduction.outcome import STAND_IN, Outcome, caption_of, notes_of
from fedwild.results.reproduction.plan import Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_HEIGHT, GAP, BELOW = 2.2, 0.35, 0.5  # in inches
MAX_COLUMNS, LEGEND_COLUMNS = 3, 5


@styled()
def draw(plan: Plan, outcomes: Sequence[Outcome]) -> Figure:
    """Draw a panel for each value of the panels' key, with the paper's description and the notes above them."""
    from matplotlib.figure import Figure

    curves = curves_of(plan)
    panels = plan.table.keys[curves.panels] if curves.panels else [""]
    columns = min(MAX_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    height = rows * (PANEL_HEIGHT + GAP) + BELOW
    figure = Figure(figsize=(WIDTH, height))
    figure.subplots_adjust(0.08, BELOW / height, 0.98, 1 - GAP / height, 0.2, GAP / PANEL_HEIGHT)
    grid = list(figure.subplots(rows, columns, sharex=True, squeeze=False).flatten())
    for axes, panel in zip(grid, panels, strict=False):
        own = [o for o in outcomes if not curves.panels or o.entry.cell.keys[curves.panels] == panel]
        draw_panel(axes, plan, curves, own)
        axes.set_title(panel, loc="left", fontsize="medium")
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[len(panels) - columns : len(panels)]:
        axes.set_xlabel(curves.x if plan.scale == 1 else f"{curves.x} at full scale", labelpad=2)
        axes.tick_params(labelbottom=True)
    grid[0].set_ylabel(plan.table.cells[0].unit)
    handles = {name: line for axes in grid for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    if handles:
        figure.legend(
            list(handles.values()), list(handles), loc="upper center", bbox_to_anchor=(0.5, 0), ncols=LEGEND_COLUMNS
        )
    # The title belongs to a line above the panels, so that it begins at the left edge of the page.
    top = figure.add_axes((0.02, 1, 0.96, 1e-6), frameon=False, xticks=(), yticks=())
    name = f"{plan.table.name} ({plan.table.label}) at scale {plan.scale:g}"
    add_title(top, name, "\n".join([caption_of(plan), *notes_of(plan, list(outcomes))]))
    return figure


def curves_of(plan: Plan) -> Curves:
    """Return how to draw the table. Raises `UserError` if it is not a figure."""
    if plan.table.curves is None:
        raise UserError(f"{plan.table.name} is a table: write it to .html, .csv, .tex or .md. Only figures are drawn.")
    return plan.table.curves


def draw_panel(axes: Axes, plan: Plan, curves: Curves, outcomes: Sequence[Outcome]) -> None:
    """Draw a line for each value of the lines' key, with error bars if there are several seeds.

    A line of a single point, such as a method with one round, goes across the panel.
    """
    from matplotlib.ticker import MaxNLocator

    axes.grid(axis="y")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    for number, name in enumerate(plan.table.keys[curves.lines]):
        own = [o for o in outcomes if o.entry.cell.keys[curves.lines] == name and o.mean is not None]
        if not own:
            continue
        look: dict[str, Any] = {
            "color": COLOURS[number % len(COLOURS)],
            "label": name + (STAND_IN if own[0].entry.stand_in else ""),
        }
        heights = [float(o.mean or 0) for o in own]
        if len(own) == 1 and len(plan.table.keys[curves.x]) > 1:
            axes.axhline(heights[0], linestyle="--", linewidth=1.2, **look)
            continue
        x = [int(o.entry.cell.keys[curves.x]) for o in own]
        errors = [o.deviation or 0.0 for o in own]
        marker = MARKERS[number % len(MARKERS)]
        axes.errorbar(x, heights, errors, linewidth=1.2, marker=marker, markersize=3.5, capsize=2, **look)
