"""The curves of a paper's figure: panels, lines, and what is written beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedwild.core.errors import UserError
from fedwild.results.papers import table
from fedwild.results.reproduction import Outcome, Plan, plan
from fedwild.results.reproduction.curves import curves_of, draw


def points_of(made: Plan) -> list[Outcome]:
    """Outcomes without runs: the value of a point is its round."""
    return [Outcome(e, (float(e.cell.keys["round"]),) if e.runs else (), None) for e in made.entries]


@pytest.fixture
def made() -> Plan:
    chosen = table("fedov/figure7")
    cells = tuple(cell for cell in chosen.cells if cell.keys["partition"] in ("c1", "c2"))
    return plan(replace(chosen, cells=cells), Path("runs"), scale=0.5, stand_in=True)


@pytest.fixture
def figure(made: Plan) -> Figure:
    return draw(made, points_of(made))


def test_each_partition_has_a_panel_with_a_line_per_method(figure: Figure) -> None:
    first, second, _ = figure.axes
    assert [axes.get_title(loc="left") for axes in (first, second)] == ["c1", "c2"]
    for axes in (first, second):
        lines = [line for line in axes.lines if len(set(line.get_xdata())) == 8]  # type: ignore[arg-type]
        assert len({line.get_color() for line in lines}) == 3
        assert all(np.array_equal(line.get_ydata(), [25, 50, 75, 100, 125, 150, 175, 200]) for line in lines)


def test_a_method_with_one_round_is_a_line_across_the_panel(figure: Figure) -> None:
    (across,) = (line for line in figure.axes[0].lines if line.get_linestyle() == "--")
    assert list(across.get_xdata()) == [0, 1]  # type: ignore[arg-type]
    assert list(across.get_ydata()) == [1, 1]  # type: ignore[arg-type]


def test_stand_ins_the_scale_and_the_papers_description_are_written(figure: Figure, made: Plan) -> None:
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["fedov†", "fedavg†", "fedprox†", "scaffold†"]
    assert figure.axes[1].get_xlabel() == "round at full scale"
    written = " ".join(figure.axes[-1].texts[0].get_text().split())
    assert "digits for cifar-10" in written
    assert " ".join(made.table.note.split())[:40] in written
    assert figure.axes[-1].get_title(loc="left") == "fedov/figure7 (Figure 7) at scale 0.5"


def test_a_table_has_no_curves() -> None:
    with pytest.raises(UserError, match="fedov/table7 is a table"):
        curves_of(plan(table("fedov/table7"), Path("runs")))
