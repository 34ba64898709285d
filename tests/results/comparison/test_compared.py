"""Rows, names, means, the best, marks and notes of a comparison."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from fedwild.core.errors import UserError
from fedwild.results.comparison import Comparison, compare, find_runs
from fedwild.results.comparison.compared import Column
from fedwild.results.tables.model import Cell
from tests.results.comparison.made import made_run, made_seeds


def compared(root: Path, *metrics: str, by: tuple[str, ...] = ()) -> Comparison:
    return compare(find_runs([root]), metrics, by)


def cells(comparison: Comparison, label: str) -> list[Cell]:
    table = comparison.table()
    column = table.headings.index(label)
    return [row[column] for row in table.rows]


def names(comparison: Comparison) -> list[str]:
    return [row.name for row in comparison.rows]


# --- rows and their names ------------------------------------------------------------------------------------


def test_runs_that_differ_in_their_seed_only_are_one_row_with_mean_and_deviation(tmp_path: Path) -> None:
    values = [0.5, 0.6, 0.85]
    made_seeds(tmp_path, "a", [*values])
    (row,) = compared(tmp_path).to_json()["rows"]
    assert row["seeds"] == [0, 1, 2]
    assert row["runs"] == [str(tmp_path / f"a-{seed}") for seed in range(3)]
    figure = row["figures"]["auroc"]
    assert figure["mean"] == pytest.approx(statistics.mean(values))
    assert figure["deviation"] == pytest.approx(statistics.stdev(values))
    assert figure["values"] == {"0": 0.5, "1": 0.6, "2": 0.85}
    assert cells(compared(tmp_path), "AUROC")[0].text == "65.0 ± 18.0 %"


def test_rows_are_named_by_the_settings_that_differ_the_method_first(tmp_path: Path) -> None:
    made_run(tmp_path / "a", settings={"score": {"name": "energy"}, "method": {"lr": 0.1}})
    made_run(tmp_path / "b", settings={"method": {"name": "fedov", "lr": 0.5, "own": 1}})
    assert names(compared(tmp_path)) == [
        "method=fedavg method.lr=0.1 score=energy",
        "method=fedov method.lr=0.5 score=msp",
    ]


def test_a_single_row_is_named_by_its_method(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    assert names(compared(tmp_path)) == ["method=fedavg"]


def test_by_names_rows_by_these_settings_and_by_more_where_two_names_would_be_equal(tmp_path: Path) -> None:
    made_run(tmp_path / "a", settings={"method": {"lr": 0.1}})
    made_run(tmp_path / "b", settings={"method": {"lr": 0.2}})
    made_run(tmp_path / "c", settings={"method": {"name": "fedov", "lr": 0.3}})
    comparison = compared(tmp_path, by=("method",))
    assert names(comparison) == ["method=fedavg method.lr=0.1", "method=fedavg method.lr=0.2", "method=fedov"]


def test_a_difference_that_the_names_do_not_show_is_in_a_note(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    made_run(tmp_path / "b", settings={"method": {"name": "fedov", "lr": 0.3}})
    assert "The rows also differ in method.lr." in compared(tmp_path, by=("method.name",)).all_notes()
    assert not any("also differ" in note for note in compared(tmp_path).all_notes())


def test_the_same_settings_and_seed_count_once(tmp_path: Path) -> None:
    made_run(tmp_path / "a", 0.5)
    made_run(tmp_path / "again", 0.7)
    comparison = compared(tmp_path)
    assert comparison.to_json()["rows"][0]["figures"]["auroc"]["values"] == {"0": 0.5}
    assert any("same settings and seed" in note and "again" in note for note in comparison.all_notes())


def test_an_unknown_setting_or_figure_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    with pytest.raises(UserError, match="Did you mean 'auroc'"):
        compared(tmp_path, "aurok")
    with pytest.raises(UserError, match=r"Did you mean 'method\.lr'"):
        compared(tmp_path, by=("method.lrr",))
    with pytest.raises(UserError, match="mean over seeds"):
        compared(tmp_path, by=("seed",))


def test_unfinished_runs_are_not_included_and_named_in_a_note(tmp_path: Path) -> None:
    made_run(tmp_path / "a", finished=False)
    with pytest.raises(UserError, match="no run is finished"):
        compared(tmp_path)
    made_run(tmp_path / "b")
    assert f"Not included, because they are unfinished: {tmp_path / 'a'}." in compared(tmp_path).all_notes()


# --- columns -------------------------------------------------------------------------------------------------


def test_columns_are_those_of_the_final_table_or_the_requested_ones(tmp_path: Path) -> None:
    made_run(tmp_path / "a", metrics={"number_found": 4.0, "hos": 0.5}, by={"client.x": {"auroc": 0.25}})
    usual = ("runs", "seeds", "closed accuracy", "AUROC", "novel classes", "time", "bytes up", "bytes down")
    assert compared(tmp_path).table().headings == usual
    asked = compared(tmp_path, "hos", "seconds", "by.client.x.auroc").table()
    assert asked.headings == ("runs", "seeds", "hos", "time", "by.client.x.auroc")
    assert [cell.text for cell in asked.rows[0]][1:] == ["1", "50.0 %", "2.0 s", "25.0 %"]
    assert cells(compared(tmp_path), "novel classes")[0].text == "4"
    assert cells(compared(tmp_path), "bytes up")[0].text == "1.7 MB"


@pytest.mark.parametrize(
    ("key", "better"),
    [
        ("auroc", "large"),
        ("by.client-1.auroc", "large"),
        ("fpr95_known_pos", "small"),
        ("by.client-1.fpr95_unknown_pos", "small"),
        ("forgetting", "small"),
        ("seconds", "small"),
        ("bytes_up", "small"),
        ("number_found", None),
        ("rounds", None),
    ],
)
def test_each_figure_has_a_direction_or_none(key: str, better: str | None) -> None:
    assert Column(key).better == better


# --- the best ------------------------------------------------------------------------------------------------


def test_the_best_is_bold_in_columns_that_have_a_direction(tmp_path: Path) -> None:
    worse: dict[str, Any] = {"forgetting": 0.2, "number_found": 3.0}
    made_run(tmp_path / "a", 0.7, metrics={"forgetting": 0.1, "number_found": 9.0}, seconds=5)
    made_run(tmp_path / "b", 0.6, settings={"method": {"lr": 1}}, metrics=worse, seconds=4)
    comparison = compared(tmp_path, "auroc", "forgetting", "seconds", "number_found")
    best = {label: [cell.best for cell in cells(comparison, label)] for label in ("AUROC", "forgetting", "time")}
    assert best == {"AUROC": [True, False], "forgetting": [True, False], "time": [False, True]}
    assert [cell.best for cell in cells(comparison, "novel classes")] == [False, False]


def test_rows_that_show_the_same_best_mean_are_all_bold(tmp_path: Path) -> None:
    for number, value in enumerate((0.70001, 0.70004, 0.6994)):
        made_run(tmp_path / str(number), value, settings={"method": {"lr": number}})
    assert [cell.best for cell in cells(compared(tmp_path), "AUROC")] == [True, True, False]


def test_a_single_row_is_never_bold(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    assert not any(cell.best for cell in compared(tmp_path).table().rows[0])


def test_an_undefined_figure_is_a_dash_and_never_bold(tmp_path: Path) -> None:
    made_run(tmp_path / "a", None)
    made_run(tmp_path / "b", 0.6, settings={"method": {"lr": 1}})
    undefined, defined = cells(compared(tmp_path), "AUROC")
    assert (undefined.text, undefined.best) == ("-", False)
    assert dict(undefined.values)["mean"] is None
    assert (defined.text, defined.best) == ("60.0 %", True)


def test_a_figure_that_is_defined_in_some_runs_shows_their_number(tmp_path: Path) -> None:
    made_seeds(tmp_path, "a", [0.5, None, 0.7])
    assert cells(compared(tmp_path), "AUROC")[0].text == "60.0 ± 14.1 % (2 of 3)"


def test_a_column_without_values_has_no_best_row(tmp_path: Path) -> None:
    made_run(tmp_path / "a", None)
    made_run(tmp_path / "b", None, settings={"method": {"lr": 1}})
    assert [(cell.text, cell.best) for cell in cells(compared(tmp_path), "AUROC")] == [("-", False)] * 2


# --- tests ---------------------------------------------------------------------------------------------------

TOP, NEAR, FAR = [0.90, 0.93, 0.91, 0.92], [0.91, 0.90, 0.92, 0.90], [0.50, 0.54, 0.52, 0.51]


@pytest.fixture
def three(tmp_path: Path) -> Path:
    for lr, values in ((1, TOP), (2, NEAR), (3, FAR)):
        made_seeds(tmp_path, f"lr{lr}", list(values), settings={"method": {"lr": lr}})
    return tmp_path


def test_rows_that_are_not_significantly_worse_are_marked_and_a_note_explains_the_mark(three: Path) -> None:
    comparison = compared(three)
    assert [cell.text.endswith("†") for cell in cells(comparison, "AUROC")] == [False, True, False]
    (note,) = comparison.all_notes()
    assert note.startswith("† not significantly worse")
    assert "paired t-test" in note
    assert "Welch" not in note


def test_if_all_others_are_significantly_worse_the_note_says_so(tmp_path: Path) -> None:
    made_seeds(tmp_path, "a", list(TOP))
    made_seeds(tmp_path, "b", list(FAR), settings={"method": {"lr": 9}})
    (note,) = compared(tmp_path, "auroc").all_notes()
    assert note.startswith("All rows that could be tested are significantly worse than the best of the column (paired")
    assert "p < 0.05" in note


def test_json_has_raw_and_corrected_p_values_and_which_test_gave_them(three: Path) -> None:
    top, near, far = (row["figures"]["auroc"] for row in compared(three).to_json()["rows"])
    assert (top["test"], top["p"], top["p_holm"]) == (None, None, None)
    assert near["test"] == far["test"] == "paired t-test"
    assert near["p"] == pytest.approx(stats.ttest_rel(TOP, NEAR).pvalue)
    assert far["p"] == pytest.approx(stats.ttest_rel(TOP, FAR).pvalue)
    assert (far["p_holm"], near["p_holm"]) == (pytest.approx(2 * far["p"]), pytest.approx(near["p"]))


def test_rows_with_different_seeds_are_tested_unpaired(tmp_path: Path) -> None:
    made_seeds(tmp_path, "a", list(TOP))
    for seed, value in enumerate(FAR[:3], start=10):
        made_run(tmp_path / f"b-{seed}", value, seed, settings={"method": {"lr": 9}})
    figure = compared(tmp_path).to_json()["rows"][1]["figures"]["auroc"]
    assert figure["test"] == "Welch's t-test"
    assert figure["p"] == pytest.approx(stats.ttest_ind(TOP, FAR[:3], equal_var=False).pvalue)


def test_a_row_with_too_few_seeds_is_not_marked_and_a_note_says_so(three: Path) -> None:
    made_run(three / "new", 0.9, 0, settings={"method": {"lr": 4}})
    comparison = compared(three)
    assert [cell.text.endswith("†") for cell in cells(comparison, "AUROC")] == [False, True, False, False]
    assert "Too few seeds to test differences for method.lr=4: both rows need at least 3." in comparison.all_notes()
    assert comparison.to_json()["rows"][3]["figures"]["auroc"]["test"] == "too few seeds"


def test_time_and_bytes_are_not_tested(three: Path) -> None:
    for row in compared(three).to_json()["rows"]:
        assert all(row["figures"][key]["test"] is None for key in ("seconds", "bytes_up", "bytes_down"))


def test_json_has_no_nan(tmp_path: Path) -> None:
    made_seeds(tmp_path, "a", [None, None, None])
    made_seeds(tmp_path, "b", [0.5, 0.5, 0.5], settings={"method": {"lr": 9}})
    text = json.dumps(compared(tmp_path).to_json(), allow_nan=False)
    assert json.loads(text)["rows"][0]["figures"]["auroc"]["mean"] is None


# --- data ----------------------------------------------------------------------------------------------------


def data_notes(root: Path) -> list[str]:
    return [note for note in compared(root).all_notes() if "not measured on the same" in note]


def test_different_test_data_is_noted_by_its_settings(tmp_path: Path) -> None:
    made_run(tmp_path / "a")
    made_run(tmp_path / "b", settings={"data": {"known": 5}}, data="other")
    assert data_notes(tmp_path) == ["The rows are not measured on the same test data: data.known differs."]


def test_different_test_data_is_noted_by_the_fingerprints_of_the_same_seed(tmp_path: Path) -> None:
    for seed in (0, 1):
        for lr in (1, 2):
            made_run(tmp_path / f"{lr}-{seed}", seed=seed, data=f"of seed {seed}", settings={"method": {"lr": lr}})
    assert data_notes(tmp_path) == []
    made_run(tmp_path / "3-0", seed=0, data="changed", settings={"method": {"lr": 3}})
    assert len(data_notes(tmp_path)) == 1


def test_settings_that_change_only_training_data_give_no_note(tmp_path: Path) -> None:
    made_run(tmp_path / "a", settings={"data": {"train_samples": 10}}, data="small")
    made_run(tmp_path / "b", settings={"data": {"train_samples": 99}}, data="large")
    assert data_notes(tmp_path) == []


@pytest.mark.parametrize("key", ["width", "displacement", "boundary", "largest_p", "moved_fc"])
def test_figures_of_a_method_have_no_direction_and_no_unit(key: str) -> None:
    assert Column(key).better is None
    assert Column(key).text([0.5], 1) == "0.50"
