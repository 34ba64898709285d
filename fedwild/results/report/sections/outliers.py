"""Outliers that clients train on: what their generator makes of samples."""

from __future__ import annotations

from fedwild.core.errors import UserError
from fedwild.results.pictures.contact_sheet import data_sheet, outlier_settings, run_sheet
from fedwild.results.pictures.sheet import draw as draw_sheet
from fedwild.results.report.charts.raster import picture
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid
from fedwild.results.report.markup import Html

ROWS, COLUMNS = 4, 7


def concerns(facts: Facts) -> bool:
    return bool(facts.table.get("objective", {}).get("name") == "outlier-aware")


def draw(facts: Facts) -> Html:
    """A contact sheet of samples and the outliers made of them."""
    about = (
        "A training sample x, outliers x' made of it, the same enhanced against the model (x''), and by how much; "
        "below each, its probability of unknown. Where no model tells one, outliers alone."
    )
    return grid([figure("Outliers", lambda: sheet(facts), about, wide=True)])


def sheet(facts: Facts) -> Html:
    """One client's outliers and what its model says of them, or what the generator makes of any samples."""
    dataset, data = facts.experiment.dataset, facts.run.config.data
    seed = int(facts.table.get("seed", 0))
    try:
        made = run_sheet(facts.run, None, ROWS, COLUMNS, seed)
    except UserError:
        made = data_sheet(dataset, data, outlier_settings(facts.run).outliers, ROWS, COLUMNS, seed)
    return picture(draw_sheet(made), "samples and their outliers")
