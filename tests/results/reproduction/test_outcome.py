"""Our figures beside the paper's, from results on disk."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from fedwild.core.errors import UserError
from fedwild.lifecycle.start import start
from fedwild.results.papers import Curves, table
from fedwild.results.reproduction import Plan, outcomes_of, plan, result_table
from fedwild.results.tables.formats import csv_text, markdown_text
from fedwild.runs.events import ignore_event
from fedwild.runs.folder import RunFolder
from tests.folders import change_json, read_json

ONLY = {"data": "mnist", "partition": "c2", "method": "close-set"}
QUICK = ["method.epochs=1", "federation.clients=2", "partition.k=5"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Two seeds of one cell. Tests replace the figures in their results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDWILD_DATA", str(tmp_path_factory.getbasetemp() / "no-data"))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "no-data"))
        folder = tmp_path_factory.mktemp("runs")
        made = plan(table("fedov/table1").only(ONLY), folder, 0.01, [0, 1], stand_in=True, settings=QUICK)
    for run in made.runs:
        start(run.config.with_engine(workers=0), run.folder, ignore_event)
    return made


def put(made: Plan, *values: float | None) -> None:
    """Write closed accuracies into the results."""
    for run, value in zip(made.runs, values, strict=True):
        metrics = read_json(run.folder / "result.json")["metrics"]
        change_json(run.folder / "result.json", metrics={**metrics, "closed_accuracy": value})


def test_ours_is_mean_and_sample_deviation_over_seeds_in_the_papers_unit(made: Plan) -> None:
    put(made, 0.25, 0.5)
    (outcome,) = outcomes_of(made, {})
    assert outcome.values == (25.0, 50.0)
    assert outcome.mean == 37.5
    assert outcome.deviation == pytest.approx(statistics.stdev([25, 50]))
    assert outcome.difference == pytest.approx(37.5 - 44.3)


def test_the_table_shows_paper_ours_and_difference(made: Plan) -> None:
    put(made, 0.25, 0.5)
    shown = result_table(made, outcomes_of(made, {}))
    text = markdown_text(shown)
    assert "44.30 ± 6.40 %" in text
    assert "37.50 ± 17.68 %†" in text
    assert "-6.80" in text
    assert "at scale 0.01" in shown.title
    assert "† not the paper's data: digits for mnist." in shown.notes
    assert "Changed: method.epochs=1, federation.clients=2, partition.k=5." in shown.notes
    head, row = csv_text(shown).splitlines()
    cells = dict(zip(head.split(","), row.split(","), strict=True))
    assert float(cells["ours"]) == 37.5
    assert float(cells["paper"]) == 44.3


def test_a_seed_with_an_undefined_figure_is_ignored(made: Plan) -> None:
    put(made, 0.25, None)
    (outcome,) = outcomes_of(made, {})
    assert outcome.values == (25.0,)
    assert outcome.deviation is None
    assert "25.00 %† (1 of 2)" in markdown_text(result_table(made, [outcome]))


def test_a_figure_that_is_undefined_for_all_seeds_is_called_undefined(made: Plan) -> None:
    put(made, None, None)
    (outcome,) = outcomes_of(made, {})
    assert (outcome.mean, outcome.difference, outcome.problem) == (None, None, "undefined")
    assert "undefined" in markdown_text(result_table(made, [outcome]))


def test_a_mean_is_over_all_runs_of_a_seed(made: Plan, tmp_path: Path) -> None:
    cell = replace(made.entries[0].cell, parts=(made.entries[0].cell,) * 2)
    # Another run of seed 1, so that the mean of this seed is over two runs, and one of seed 9, which is not finished.
    twin = replace(made.runs[1], folder=made.runs[0].folder)
    missing = plan(made.table, tmp_path, 0.01, [9], stand_in=True).runs[0]
    put(made, 0.25, 0.5)
    for runs, values in (
        ([*made.runs, twin], (25.0, 37.5)),
        ([*made.runs, replace(twin, folder=missing.folder)], (25.0,)),
    ):
        (outcome,) = outcomes_of(replace(made, entries=(replace(made.entries[0], cell=cell, runs=tuple(runs)),)), {})
        assert outcome.values == values
    assert "(1 of 2)" in markdown_text(result_table(made, [outcome]))


def test_a_point_of_a_curve_is_read_from_the_log_and_has_no_difference(made: Plan) -> None:
    (entry,) = made.entries
    measure = entry.cell.measure
    assert measure is not None
    point = replace(entry, cell=replace(entry.cell, value=None, measure=replace(measure, round=1)))
    curves = replace(made.table, curves=Curves(x="partition", lines="method"))
    drawn = replace(made, table=curves, entries=(point,))
    put(made, 0.0, 0.0)
    (outcome,) = outcomes_of(drawn, {})
    rounds = [e for run in made.runs for e in RunFolder.open(run.folder).read_log() if e["event"] == "round"]
    assert outcome.values == tuple(100 * event["metrics"]["closed_accuracy"] for event in rounds)
    assert outcome.values != (0.0, 0.0)
    assert outcome.difference is None
    shown = result_table(drawn, [outcome])
    assert shown.headings == ("data", "partition", "method", "ours")
    assert "The paper's text gives no numbers of this figure." in shown.notes


def test_missing_and_failed_runs_are_distinguished(made: Plan, tmp_path: Path) -> None:
    later = plan(made.table, tmp_path, 0.01, [9], stand_in=True)
    (waiting,) = outcomes_of(later, {})
    assert waiting.problem == "not run yet"
    (failed,) = outcomes_of(later, {later.runs[0].label: UserError("no replies")})
    assert failed.problem == "failed: no replies"


def test_json_has_all_figures(made: Plan) -> None:
    put(made, 0.25, 0.5)
    (outcome,) = outcomes_of(made, {})
    values = outcome.to_json()
    assert values["keys"]["method"] == "close-set"
    assert (values["paper"], values["paper_deviation"], values["ours"]) == (44.3, 6.4, 37.5)
    assert values["stand_in"] == "digits for mnist"
    assert [Path(folder).is_dir() for folder in values["runs"]] == [True, True]
    assert not math.isnan(values["difference"])


def test_a_row_that_the_paper_lacks_has_our_figure_alone(made: Plan) -> None:
    put(made, 0.25, 0.5)
    entry = replace(made.entries[0], cell=replace(made.entries[0].cell, value=None, deviation=None))
    (outcome,) = outcomes_of(replace(made, entries=(entry,)), {})
    assert (outcome.mean, outcome.difference, outcome.to_json()["paper"]) == (37.5, None, None)
    shown = csv_text(result_table(made, [outcome])).splitlines()[1].split(",")
    assert "37.5" in shown and "44.3" not in shown


def test_a_missing_domain_has_no_figure(made: Plan) -> None:
    cell = table("fedpd/table1").only({"method": "fedpd", "figure": "accuracy", "domain": "svhn"}).cells[0]
    entry = replace(made.entries[0], cell=cell)
    (outcome,) = outcomes_of(replace(made, entries=(entry,)), {})
    assert (outcome.values, outcome.problem) == ((), "svhn is missing")
