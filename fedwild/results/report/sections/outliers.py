"""The outliers that clients train on."""

from __future__ import annotations

from fedwild.core.errors import UserError
from fedwild.results.pictures.contact_sheet import data_sheet, outlier_settings, run_sheet
from fedwild.results.pictures.sheet import draw as draw_sheet
from fedwild.results.report.charts.raster import embed_image
from fedwild.results.report.facts import Facts
from fedwild.results.report.figure import figure, grid
from fedwild.results.report.markup import Html

ROWS, COLUMNS = 4, 7


def is_relevant(facts: Facts) -> bool:
    return bool(facts.table.get("objective", {}).get("name") == "outlier-aware")


def draw(facts: Facts) -> Html:
    """Return a contact sheet of samples and the outliers made from them."""
    about = (
        "Training samples x, outliers x' made from them, their adversarial versions x'', and the difference. Below "
        "each: its probability of unknown. If no model has an output for unknown, only samples and outliers."
    )
    return grid([figure("Outliers", lambda: sheet(facts), about, wide=True)])


def sheet(facts: Facts) -> Html:
    """Return one client's outliers with its model's answers, or outliers of any samples if no model has an answer."""
    dataset, data = facts.experiment.dataset, facts.run.config.data
    seed = int(facts.table.get("seed", 0))
    try:
        made = run_sheet(facts.run, None, ROWS, COLUMNS, seed)
    except UserError:
        made = data_sheet(dataset, data, outlier_settings(facts.run).outliers, ROWS, COLUMNS, seed)
    return embed_image(draw_sheet(made), "samples and their outliers")
