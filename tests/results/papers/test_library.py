"""The papers' tables: by name, selections of cells, and what is missing."""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path

import pytest

from fedwild.core.errors import UserError
from fedwild.results import papers
from fedwild.results.papers import Table
from fedwild.results.papers.library import figures_of, value_and_deviation
from tests.results.papers.shelf import CELLS, TABLES, the_cell


def waiting(table: str, **keys: str) -> str:
    reason = the_cell(table, **keys).waiting
    assert reason is not None
    return reason


def error_of(table: Table, **keys: str) -> str:
    with pytest.raises(UserError) as caught:
        table.only(keys)
    return str(caught.value)


# --- tables --------------------------------------------------------------------------------------------------


def test_every_file_of_a_paper_is_one_of_its_tables() -> None:
    for paper in papers.papers():
        there = {Path(file.name).stem for file in files("fedwild.results.papers").joinpath(paper.id).iterdir()}
        assert there == {"paper", *(table.id for table in paper.tables)}


def test_papers_have_title_authors_and_venue() -> None:
    for paper in papers.papers():
        assert paper.title and paper.authors and paper.venue


def test_the_cells_of_a_table_have_the_same_keys_and_are_unique() -> None:
    for table in TABLES:
        assert table.caption
        assert table.cells
        assert {frozenset(cell.keys) for cell in table.cells} == {frozenset(table.keys)}, table.name
        everything = [frozenset(keys.items()) for keys in (*(cell.keys for cell in table.cells), *table.illegible)]
        assert len(set(everything)) == len(everything), table.name


def test_keys_and_values_have_no_characters_that_only_could_not_parse() -> None:
    for table in TABLES:
        for key, values in table.keys.items():
            assert all(mark not in text for text in (key, *values) for mark in ",= "), (table.name, key)


def test_percentages_are_shares_times_100() -> None:
    for cell in CELLS:
        assert cell.value is None or (math.isfinite(cell.value) and cell.value >= 0)
        assert cell.deviation is None or cell.deviation >= 0
        assert cell.unit != "%" or cell.value is None or cell.value <= 100
        assert cell.measure is None or cell.measure.factor == (100 if cell.unit == "%" else 1)


def test_a_note_explains_illegible_figures() -> None:
    for table in TABLES:
        assert not table.illegible or "text" in table.note, table.name


def test_an_unknown_table_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"table 'fedov/tabel1' is not known\. Did you mean 'fedov/table1'"):
        papers.table("fedov/tabel1")


def test_a_table_by_name_equals_that_of_the_list() -> None:
    assert [papers.table(table.name) for table in papers.tables()] == papers.tables()


def test_changing_the_settings_of_a_cell_does_not_change_the_tables() -> None:
    settings = the_cell("fedov/table1", data="mnist", partition="c2", method="fedov").settings
    assert settings is not None
    settings["data"]["name"] = "other"
    settings["method"].clear()
    again = the_cell("fedov/table1", data="mnist", partition="c2", method="fedov").settings
    assert again is not None
    assert again["data"]["name"] == "mnist"
    assert again["method"]["name"] == "fedov"


# --- selections ----------------------------------------------------------------------------------------------


def test_a_selection_keeps_the_cells_that_have_all_the_values() -> None:
    table = papers.table("fedov/table1")
    some = table.only({"data": "mnist", "partition": "c2"})
    assert (some.name, some.number, some.caption) == (table.name, table.number, table.caption)
    assert some.keys["method"] == table.keys["method"]
    assert [cell for cell in table.cells if cell.keys["data"] == "mnist" and cell.keys["partition"] == "c2"] == list(
        some.cells
    )


def test_selecting_nothing_keeps_everything() -> None:
    table = papers.table("gal/table2")
    assert table.only({}) == table


def test_a_selection_has_only_its_own_illegible_cells() -> None:
    table = papers.table("fedov/table17")
    assert len(table.illegible) == 110
    assert table.only({"data": "mnist"}).illegible == ()
    assert len(table.only({"data": "svhn", "clients": "80"}).illegible) == 10


def test_an_unknown_key_is_rejected_with_the_known_ones() -> None:
    message = error_of(papers.table("fedov/table1"), datta="mnist")
    assert message == (
        "key of fedov/table1 'datta' is not known. Did you mean 'data'? Available: data, method, partition."
    )


def test_an_unknown_value_is_rejected_with_the_known_ones() -> None:
    message = error_of(papers.table("fedov/table1"), data="minst")
    assert message == (
        "data of fedov/table1 'minst' is not known. Did you mean 'mnist'? "
        "Available: cifar-10, fashion-mnist, mnist, svhn."
    )


def test_one_error_reports_all_problems_of_a_selection() -> None:
    message = error_of(papers.table("fedov/table1"), data="minst", rows="1", method="fedvo")
    assert len(message.splitlines()) == 3


def test_values_without_a_common_cell_are_rejected() -> None:
    message = error_of(papers.table("gal/table11"), data="imagenet-subset", novel="50")
    assert message == (
        "gal/table11 has no cell with data=imagenet-subset, novel=50: each of these values exists, but not together."
    )


# --- what is missing -----------------------------------------------------------------------------------------


def test_a_missing_method_is_named_and_has_no_settings() -> None:
    cell = the_cell("gal/table1", method="autonovel", data="cifar-100", accuracy="novel")
    assert cell.waiting == "method: AutoNovel is not implemented"
    assert cell.settings is None


def test_missing_data_is_named_with_the_command_that_prepares_it() -> None:
    cell = the_cell("fedov/table1", data="mnist", partition="c1", method="fedov")
    assert cell.waiting == "data: mnist is not on this machine (fedwild data prepare mnist)"
    assert cell.settings is not None
    by_hand = waiting("gains/table2", setting="medium-mnist-mnistm", accuracy="target")
    assert by_hand.endswith("mnist-m is not on this machine (no automatic download)")
    foreign = waiting("fedoss/table2", method="fedoss", unknown="3", figure="f1")
    assert foreign == "data: hyper-kvasir is not a data set of fedwild"


def test_available_data_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path))
    (tmp_path / "svhn.npz").touch()
    assert the_cell("fedov/table1", data="svhn", partition="c1", method="fedov").waiting is None
    arrives = waiting("gains/table2", setting="medium-svhn-mnist", accuracy="target")
    assert arrives == "data: mnist is not on this machine (fedwild data prepare mnist)"
    (tmp_path / "mnist.npz").touch()
    assert the_cell("gains/table2", setting="medium-svhn-mnist", accuracy="target").waiting is None


def test_data_with_a_generated_stand_in_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path))
    setting = {"setting": "medium-synth-mnistm", "accuracy": "target"}
    assert waiting("gains/table2", **setting) == "data: mnist-m is not on this machine (no automatic download)"
    (tmp_path / "mnist-m.npz").touch()
    assert the_cell("gains/table2", **setting).waiting is None
    monkeypatch.setattr("fedwild.data.sources.rendered.find_spec", lambda name: None)
    assert waiting("gains/table2", **setting).startswith("data: rendered-digits is not on this machine (its fonts are")


def test_a_figure_that_no_run_has_is_missing() -> None:
    assert waiting("gains/table5", method="gains", figure="rounds").startswith("figure: rounds until convergence")


@pytest.mark.parametrize(
    ("name", "keys", "parts"),
    [
        ("gal/table11", {"estimator": "ppm", "accuracy": "error"}, 15),
        ("gal/table12", {"estimator": "ppm", "accuracy": "error"}, 12),
        ("fedov/table16", {"data": "mnist", "known": "average", "method": "proser-dd"}, 10),
    ],
)
def test_a_mean_has_the_cells_that_it_is_over(name: str, keys: dict[str, str], parts: int) -> None:
    cell = the_cell(name, **keys)
    assert len(cell.parts) == parts
    same = {key: value for key, value in cell.keys.items() if key in ("estimator", "method")}
    assert all(same.items() <= part.keys.items() and not part.parts for part in cell.parts)
    assert cell.settings is None
    reasons = {reason for part in cell.parts for reason in (part.waiting or "").split("; ")}
    assert set((cell.waiting or "").split("; ")) == reasons


def test_the_gal_tables_have_the_seeds_of_the_paper() -> None:
    assert the_cell("gal/table1", method="gal", data="cifar-100", accuracy="all").seeds == (2023, 2024, 2025)
    assert the_cell("gal/table7", method="gal", seed="2024", accuracy="all").seeds == (2024,)
    assert the_cell("fedov/table1", data="mnist", partition="c2", method="fedov").seeds == ()


def test_what_is_missing_is_a_method_data_or_a_figure() -> None:
    for cell in CELLS:
        assert cell.waiting is None or cell.waiting.split(":")[0] in ("method", "data", "figure")
        assert cell.measure is not None or cell.waiting is not None


def test_points_of_curves_have_no_number_and_the_note_says_what_the_text_says() -> None:
    for name in ("figure4", "figure5", "figure7"):
        table = papers.table(f"fedov/{name}")
        assert table.label == f"Figure {name[-1]}"
        assert all(cell.value is None for cell in table.cells)
        assert "The text says" in table.note
        assert table.curves is not None
        assert {table.curves.x, table.curves.lines, table.curves.panels or table.curves.x} <= set(table.keys)


def test_a_run_that_starts_from_another_counts_it_as_its_first_round() -> None:
    keys = {"method": "fedov-fedprox"}
    first, later = (the_cell("fedov/figure4", round=number, **keys) for number in ("1", "5"))
    assert first.settings is not None and later.settings is not None and later.begins_with is not None
    assert (first.settings["method"]["name"], later.settings["method"]["name"]) == ("distilled-fedov", "fedavg")
    assert later.begins_with == first.settings
    assert first.measure is not None and first.measure.round is None
    assert later.measure is not None and later.measure.round == 4


def test_a_line_has_its_keys_and_then_a_figure_for_each_column() -> None:
    block = {
        "fixed": {"model": "m"},
        "rows": ["data", "partition"],
        "columns": {"method": ["a", "b"], "figure": ["acc", "auc"]},
        "cells": "\nmnist c1  1 2  3 4\n",
    }
    assert list(figures_of(block)) == [
        ({"model": "m", "data": "mnist", "partition": "c1", "method": "a", "figure": "acc"}, "1"),
        ({"model": "m", "data": "mnist", "partition": "c1", "method": "a", "figure": "auc"}, "2"),
        ({"model": "m", "data": "mnist", "partition": "c1", "method": "b", "figure": "acc"}, "3"),
        ({"model": "m", "data": "mnist", "partition": "c1", "method": "b", "figure": "auc"}, "4"),
    ]


def test_without_columns_a_line_has_one_figure() -> None:
    assert list(figures_of({"rows": ["x"], "cells": "a 1\nb ?"})) == [({"x": "a"}, "1"), ({"x": "b"}, "?")]


def test_without_lines_there_are_points_of_curves() -> None:
    block = {"fixed": {"data": "mnist"}, "columns": {"k": ["1", "2"]}}
    assert list(figures_of(block)) == [({"data": "mnist", "k": "1"}, "-"), ({"data": "mnist", "k": "2"}, "-")]


@pytest.mark.parametrize("line", ["mnist 1", "mnist 1 2 3"])
def test_a_line_with_too_few_or_too_many_figures_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="zip"):
        list(figures_of({"rows": ["data"], "columns": {"method": ["a", "b"]}, "cells": line}))


def test_a_deviation_follows_a_plus_minus_sign() -> None:
    assert value_and_deviation("40.0±1.7") == (40.0, 1.7)
    assert value_and_deviation("98.6±0") == (98.6, 0.0)
    assert value_and_deviation("12") == (12.0, None)


def test_rows_of_our_own_have_no_figure_of_the_paper() -> None:
    assert value_and_deviation("-") == (None, None)
    table = papers.table("fedpd/table1")
    ours = {cell.keys["method"] for cell in table.cells if cell.value is None}
    assert ours == {"proser-one-stage", "fedpd-one-stage", "local-only", "ours", "ours-one-model"}
    assert all(cell.value is None for cell in table.cells if cell.keys["method"] in ours)
    without = {other.name for other in TABLES if any(cell.value is None for cell in other.cells)}
    assert without == {table.name, *(other.name for other in TABLES if other.curves)}
