"""The runs that a table needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedwild.core.errors import UserError
from fedwild.results.papers import table
from fedwild.results.reproduction import Plan, outcomes_of, plan, result_table
from fedwild.results.reproduction.listing import partial_lines


def planned(name: str, only: dict[str, str], **options: object) -> Plan:
    return plan(table(name).only(only), Path("runs"), stand_in=True, **options)  # type: ignore[arg-type]


def test_cells_with_figures_of_one_run_share_it() -> None:
    made = planned("fedoss/table1", {"unknown": "3", "method": "softmax"})
    assert len(made.entries) == 4
    assert len(made.runs) == 1
    assert made.runs[0].label == "blood-mnist, softmax, 3, seed 0"


@pytest.mark.parametrize("name", ["gal/table11", "gal/table12", "gains/table2", "fedov/table16"])
def test_the_runs_of_a_table_have_different_labels(name: str) -> None:
    runs = planned(name, {}, seeds=[0, 1]).runs
    assert len({run.label for run in runs}) == len(runs)


def test_tables_share_runs() -> None:
    first = planned("fedov/table1", {"data": "mnist", "partition": "c2", "method": "fedov"})
    second = planned("fedov/table2", {"data": "mnist", "partition": "c2"})
    assert first.runs[0].folder in {run.folder for run in second.runs}


def test_other_settings_scales_and_seeds_have_different_folders() -> None:
    only = {"data": "mnist", "partition": "c2", "method": "fedov"}
    plans = [
        planned("fedov/table1", only),
        planned("fedov/table1", only, scale=0.1),
        planned("fedov/table1", only, settings=["method.lr=0.5"]),
        planned("fedov/table1", {**only, "partition": "c3"}),
        planned("fedov/table1", only, seeds=[1]),
    ]
    assert len({made.runs[0].folder for made in plans}) == len(plans)


def test_a_cell_has_a_run_for_each_seed() -> None:
    (entry,) = planned("fedov/table1", {"data": "mnist", "partition": "c2", "method": "fedov"}, seeds=[3, 5]).entries
    assert [run.config.seed for run in entry.runs] == [3, 5]
    assert entry.runs[0].folder.name.removesuffix("seed3") == entry.runs[1].folder.name.removesuffix("seed5")


def test_a_mean_has_the_runs_of_its_cells() -> None:
    everything = planned("gal/table12", {"estimator": "ppm"}, seeds=[0, 1])
    (mean,) = planned("gal/table12", {"estimator": "ppm", "accuracy": "error"}, seeds=[0, 1]).entries
    (again,) = (entry for entry in everything.entries if entry.cell.parts)
    assert [run.folder for run in mean.runs] == [run.folder for run in again.runs]
    assert {run.folder for run in mean.runs} == {run.folder for run in everything.runs}
    assert len(mean.runs) == 2 * 12
    # Labels are those of the cells with the runs.
    assert {run.label for run in mean.runs} == {run.label for run in everything.runs}


def test_the_default_seeds_are_those_of_the_paper() -> None:
    made = planned("gal/table1", {"data": "cifar-100", "method": "gal", "accuracy": "novel"})
    assert [run.config.seed for run in made.runs] == [2023, 2024, 2025]
    made = planned("gal/table7", {"seed": "2024", "method": "gal", "accuracy": "novel"})
    assert {run.config.seed for run in made.runs} == {2024}


def test_without_stand_in_cells_with_missing_data_have_no_runs() -> None:
    made = plan(table("fedov/table1").only({"data": "mnist", "partition": "c2"}), Path("runs"))
    assert made.runs == []
    assert sum(made.reasons.values()) == 8


def test_cells_with_a_missing_method_never_have_runs() -> None:
    made = planned("fedov/table1", {"data": "mnist", "partition": "c2"})
    assert {entry.cell.keys["method"] for entry in made.entries if not entry.runs} == {"fednova", "feddf", "fedkt"}


def test_settings_override_paper_and_scale() -> None:
    (run,) = planned(
        "fedov/table1",
        {"data": "mnist", "partition": "c2", "method": "fedov"},
        scale=0.1,
        settings=["method.epochs=3", "federation.clients=2"],
    ).runs
    table = run.config.table()
    assert (table["method"]["epochs"], table["federation"]["clients"]) == (3, 2)


def test_a_run_that_starts_from_another_comes_after_it_wherever_they_are() -> None:
    keys = {"method": "fedov-fedprox", "round": "5"}
    made = planned("fedov/figure4", keys, seeds=[3, 4], scale=0.5)
    (entry,) = made.entries
    for first, later in zip(entry.earlier, entry.runs, strict=True):
        assert made.runs.index(first) < made.runs.index(later)
        assert later.config.federation.start_from == str(first.folder)
        assert later.config.seed == first.config.seed
    elsewhere = plan(made.table, Path("other"), seeds=[3, 4], scale=0.5, stand_in=True).runs
    assert [run.folder.name for run in elsewhere] == [run.folder.name for run in made.runs]
    assert entry.cell.measure is not None and entry.cell.measure.round == 2
    assert [run.config.evaluation.every for run in entry.runs] == [1, 1]


def test_an_invalid_setting_is_rejected_with_the_keys_of_its_cell() -> None:
    with pytest.raises(UserError, match=r"data=mnist, partition=c2, method=fedov: method.lr = 'fast'"):
        planned("fedov/table1", {"data": "mnist", "partition": "c2", "method": "fedov"}, settings=["method.lr=fast"])


def test_generated_data_marks_the_figure_and_is_where_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path))
    for name in ("mnist", "svhn", "usps", "mnist-m"):
        (tmp_path / f"{name}.npz").touch()
    keys = {"method": "softmax", "figure": "auroc", "domain": "synth-digits"}
    (entry,) = plan(table("fedpd/table1").only(keys), Path("runs")).entries
    assert entry.stand_in == "rendered-digits for synth-digits"
    assert entry.cell.measure is not None and entry.cell.measure.part == "rendered-digits"
    assert entry.runs[0].config.data.names == ["mnist", "svhn", "usps", "rendered-digits", "mnist-m"]
    (tmp_path / "synth-digits.npz").touch()
    (entry,) = plan(table("fedpd/table1").only(keys), Path("runs")).entries
    assert entry.stand_in is None
    assert entry.cell.measure is not None and entry.cell.measure.part == "synth-digits"


def test_data_sets_that_are_not_complete_are_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDWILD_DATA", str(tmp_path))
    for name in ("svhn", "mnist"):
        np.savez(tmp_path / f"{name}.npz", y_train=np.zeros(60000), y_test=np.zeros(10000))
    newcomer = plan(table("gains/table2").only({"setting": "medium-svhn-mnist"}), Path("runs"))
    expected = "svhn has 60,000 of 73,257 training and 10,000 of 26,032 test samples"
    assert newcomer.partial == [expected]
    assert f"Not the complete data sets: {expected}." in result_table(newcomer, outcomes_of(newcomer, {})).notes
    assert partial_lines([table("gains/table2")]) == [f"{expected} (3 cells)"]
    np.savez(tmp_path / "svhn.npz", y_train=np.zeros(73257), y_test=np.zeros(26032))
    assert newcomer.partial == []
