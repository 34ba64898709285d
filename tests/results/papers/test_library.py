"""The papers' tables: found by name, cut down to some cells, and honest about what is missing."""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path

import pytest

from fedwild import papers
from fedwild.core.errors import UserError
from fedwild.results.papers import Table
from tests.results.papers.shelf import CELLS, TABLES, the_cell


def waiting(table: str, **keys: str) -> str:
    reason = the_cell(table, **keys).waiting
    assert reason is not None
    return reason


def refusal(table: Table, **keys: str) -> str:
    with pytest.raises(UserError) as caught:
        table.only(keys)
    return str(caught.value)


# --- tables --------------------------------------------------------------------------------------------------


def test_every_file_of_a_paper_is_one_of_its_tables() -> None:
    for paper in papers.papers():
        there = {Path(file.name).stem for file in files("fedwild.results.papers").joinpath(paper.id).iterdir()}
        assert there == {"paper", *(table.id for table in paper.tables)}


def test_papers_say_who_wrote_them() -> None:
    for paper in papers.papers():
        assert paper.title and paper.authors and paper.venue


def test_a_table_has_cells_of_the_same_keys_each_of_them_once() -> None:
    for table in TABLES:
        assert table.caption
        assert table.cells
        assert {frozenset(cell.keys) for cell in table.cells} == {frozenset(table.keys)}, table.name
        everything = [frozenset(keys.items()) for keys in (*(cell.keys for cell in table.cells), *table.illegible)]
        assert len(set(everything)) == len(everything), table.name


def test_values_of_keys_can_be_written_in_a_list_of_key_and_value_pairs() -> None:
    for table in TABLES:
        for key, values in table.keys.items():
            assert all(mark not in text for text in (key, *values) for mark in ",= "), (table.name, key)


def test_per_cent_are_of_fractions_and_lie_between_0_and_100() -> None:
    for cell in CELLS:
        assert math.isfinite(cell.value) and cell.value >= 0
        assert cell.deviation is None or cell.deviation >= 0
        assert cell.unit != "%" or cell.value <= 100
        assert cell.measure is None or cell.measure.factor == (100 if cell.unit == "%" else 1)


def test_what_could_not_be_read_is_told_in_a_note() -> None:
    for table in TABLES:
        assert not table.illegible or "text" in table.note, table.name


def test_an_unknown_table_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"table 'fedov/tabel1' is not known\. Did you mean 'fedov/table1'"):
        papers.table("fedov/tabel1")


def test_a_table_by_name_is_the_one_of_the_list() -> None:
    assert [papers.table(table.name) for table in papers.tables()] == papers.tables()


def test_changing_a_cells_settings_leaves_the_tables_as_they_are() -> None:
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


def test_a_selection_keeps_its_own_illegible_cells_only() -> None:
    table = papers.table("fedov/table17")
    assert len(table.illegible) == 110
    assert table.only({"data": "mnist"}).illegible == ()
    assert len(table.only({"data": "svhn", "clients": "80"}).illegible) == 10


def test_an_unknown_key_is_refused_with_those_there_are() -> None:
    said = refusal(papers.table("fedov/table1"), datta="mnist")
    assert said == (
        "key of fedov/table1 'datta' is not known. Did you mean 'data'? Available: data, method, partition."
    )


def test_an_unknown_value_is_refused_with_those_there_are() -> None:
    said = refusal(papers.table("fedov/table1"), data="minst")
    assert said == (
        "data of fedov/table1 'minst' is not known. Did you mean 'mnist'? "
        "Available: cifar-10, fashion-mnist, mnist, svhn."
    )


def test_everything_wrong_with_a_selection_is_told_at_once() -> None:
    said = refusal(papers.table("fedov/table1"), data="minst", rows="1", method="fedvo")
    assert len(said.splitlines()) == 3


def test_values_that_never_meet_are_refused() -> None:
    said = refusal(papers.table("gal/table11"), data="imagenet-subset", novel="50")
    assert said == (
        "gal/table11 has no cell with data=imagenet-subset, novel=50: each of them exists, but not together."
    )


# --- what is waited for --------------------------------------------------------------------------------------


def test_a_method_that_is_not_built_is_named_and_has_no_settings() -> None:
    cell = the_cell("gal/table1", method="autonovel", data="cifar-100", accuracy="novel")
    assert cell.waiting == "method: AutoNovel is not built"
    assert cell.settings is None
    assert not cell.runnable


def test_data_that_is_not_there_is_named_with_the_way_to_get_it() -> None:
    cell = the_cell("fedov/table1", data="mnist", partition="c1", method="fedov")
    assert cell.waiting == "data: mnist is not on this machine (fedwild data prepare mnist)"
    assert cell.settings is not None
    by_hand = waiting("gains/table2", setting="medium-mnist-mnistm", accuracy="target")
    assert by_hand.endswith("mnist-m is not on this machine (to be put in place by hand)")
    foreign = waiting("fedoss/table2", method="fedoss", unknown="3", figure="f1")
    assert foreign == "data: hyper-kvasir is none of fedwild's data sets"


def test_data_that_is_there_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path))
    (tmp_path / "svhn.npz").touch()
    assert the_cell("fedov/table1", data="svhn", partition="c1", method="fedov").runnable
    arrives = waiting("gains/table2", setting="medium-svhn-mnist", accuracy="target")
    assert arrives == "data: mnist is not on this machine (fedwild data prepare mnist)"
    (tmp_path / "mnist.npz").touch()
    assert the_cell("gains/table2", setting="medium-svhn-mnist", accuracy="target").runnable


def test_a_figure_that_no_run_has_is_waited_for() -> None:
    assert waiting("fedov/table16", data="mnist", known="average", method="proser-dd") == "figure: the mean of ten runs"
    assert waiting("gains/table5", method="gains", figure="rounds").startswith("figure: rounds until convergence")


def test_what_is_waited_for_is_a_method_data_or_a_figure() -> None:
    for cell in CELLS:
        assert cell.waiting is None or cell.waiting.split(":")[0] in ("method", "data", "figure")
        assert cell.measure is not None or cell.waiting is not None
