"""Outliers that clients train on: what their generator makes of samples."""

from __future__ import annotations

from fedwild.openset.contact_sheet import run_sheet
from fedwild.report.charts.raster import picture
from fedwild.report.facts import Facts
from fedwild.report.figure import figure, grid
from fedwild.report.markup import Html
from fedwild.sheet import draw as draw_sheet

ROWS, COLUMNS = 4, 7


def concerns(facts: Facts) -> bool:
    return bool(facts.table.get("objective", {}).get("name") == "outlier-aware")


def draw(facts: Facts) -> Html:
    """A contact sheet of one client's samples and the outliers made of them."""

    def sheet() -> Html:
        seed = int(facts.table.get("seed", 0))
        facts.experiment  # noqa: B018  (says why if there is none)
        return picture(draw_sheet(run_sheet(facts.run, None, ROWS, COLUMNS, seed)), "samples and their outliers")

    about = (
        "A training sample x, outliers x' made of it, the same enhanced against the model (x''), and by how much; "
        "below each, its probability of unknown."
    )
    return grid([figure("Outliers", sheet, about, wide=True)])
