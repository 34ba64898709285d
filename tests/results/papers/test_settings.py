"""The run for a cell: its settings are valid, and its result has the figure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedwild import api
from fedwild.data import choose_classes
from fedwild.models import build
from fedwild.results import papers
from fedwild.results.papers import Cell
from fedwild.results.papers.library import Layer, last_of, layers_of, measure_of, settings_of, waiting_of
from fedwild.runs.config import resolve
from tests.results.papers.shelf import CELLS, TABLES, the_cell

Settings = dict[str, Any]


def settings(table: str, **keys: str) -> Settings:
    found = the_cell(table, **keys).settings
    assert found is not None
    return found


def cells_of(paper: str) -> list[Cell]:
    return [cell for table in TABLES if table.paper == paper for cell in table.cells]


def test_every_composition_is_a_valid_config() -> None:
    for cell in CELLS:
        if cell.settings is not None:
            resolve(cell.settings).make_method()


def test_rows_that_differ_in_the_paper_differ_in_their_settings() -> None:
    """Except for keys that only select a figure of a run."""
    reading = {"accuracy", "figure", "domain", "round", "k"}
    for table in TABLES:
        runs: dict[str, Settings] = {}
        for cell in table.cells:
            if cell.settings is not None:
                row = {key: value for key, value in cell.keys.items() if key not in reading}
                assert runs.setdefault(json.dumps(cell.settings, sort_keys=True), row) == row, table.name


def test_settings_come_from_paper_table_and_keys() -> None:
    found = settings("fedov/table14", clients="100", partition="c3", method="distilled-fedov")
    assert found["data"].pop("augment") == ["crop", "flip", "rotate"]
    assert len(found["data"].pop("mean")) == len(found["data"].pop("std")) == 3
    assert found["data"] == {"validation": 0.0, "name": "cifar-100", "public_from": "test"}
    assert found["federation"] == {"clients": 100}
    assert found["partition"] == {"name": "c3"}
    assert found["model"] == {"name": "resnet-50"}
    assert found["method"]["name"] == "distilled-fedov"
    assert found["method"]["epochs"] == 100
    assert found["objective"] == {"name": "outlier-aware", "enhanced": False, "dummy_weight": 0.0, "mix_weight": 0.0}


def test_the_papers_methods_use_the_papers_presets() -> None:
    assert settings("fedov/table1", data="mnist", partition="c2", method="fedov")["method"]["voting"] == "all"
    assert settings("fedpd/table1", method="fedpd", figure="auroc", domain="mean")["method"]["name"] == "fedpd-paper"
    assert settings("fedoss/table1", method="fedoss", unknown="3", figure="f1")["method"]["name"] == "fedoss-paper"
    assert settings("gal/table6", method="gal", data="cifar-100", accuracy="all")["method"]["name"] == "gal-paper"
    assert settings("gains/table2", setting="mild-69", accuracy="target")["method"]["name"] == "gains-paper"


def test_baselines_of_fedoss_have_its_schedule_and_its_decision() -> None:
    cell = {"unknown": "3", "figure": "f1"}
    softmax, proser = (settings("fedoss/table1", method=name, **cell) for name in ("softmax", "proser"))
    shared = {"optimizer": "adam", "lr": 5e-4, "rounds": 100, "halve_after": 25}
    assert shared.items() <= softmax["method"].items() and shared.items() <= proser["method"].items()
    assert (softmax["method"]["name"], softmax["method"]["finetune_rounds"]) == ("fedoss-paper", 0)
    assert (proser["objective"]["name"], proser["method"]["decision"]) == ("proser", "argmax")


def test_fedoss_tables_choose_classes_by_the_seed_of_the_run() -> None:
    for name in ("softmax", "proser", "fedoss"):
        found = settings("fedoss/table1", method=name, unknown="3", figure="f1")
        configs = [resolve(found, {"seed": seed}) for seed in (0, 1, 2)]
        chosen = {choose_classes(tuple("abcdefgh"), "blood-mnist", config.data, config.seed) for config in configs}
        assert len(chosen) == 3 and {len(roles.known) for roles in chosen} == {5}


def test_fedoss_draws_as_the_authors_do() -> None:
    authors = {"refresh": 5, "first_refresh": 5, "max_drawn": 8, "draw_in": "boundary", "own_pass": True}
    endoscopy = {"unknown": "3", "figure": "f1"}
    blood, *others = (
        settings("fedoss/table1", method="fedoss", **endoscopy),
        settings("fedoss/table2", method="fedoss", **endoscopy),
        settings("fedoss/table4", modules="duss-and-foss", **endoscopy),
        settings("fedoss/figure5", method="fedoss", unknown="3"),
    )
    assert authors.items() <= blood["method"].items() and "accept" not in blood["method"]
    for found in others:
        assert {**authors, "accept": "unknown"}.items() <= found["method"].items()
        assert (found["data"]["known"], found["data"]["known_among"]) == (6, 9)


def test_fedoss_tables_have_the_settings_of_the_authors() -> None:
    for unknown, high in (("3", 13 / 16), ("5", 14 / 16)):
        found = settings("fedoss/table1", method="fedoss", unknown=unknown, figure="f1")
        assert found["model"] == {"name": "resnet-18", "stem": "large"}
        assert (found["method"]["batch_size"], found["method"]["high"]) == (8, high)
        assert found["partition"]["balance"] is False
        assert (found["data"]["mean"], found["data"]["std"]) == (0.5, 0.5)
    volumes = settings("fedoss/table3", method="fedoss", unknown="4", figure="f1")
    assert volumes["model"] == {"name": "resnet-18-3d", "stem": "large", "convolution": "acs"}
    assert volumes["method"]["batch_size"] == 4


@pytest.mark.parametrize("method", ["gains", "fedavg", "fedprox", "fedheal", "fedproto"])
@pytest.mark.parametrize(
    ("setting", "network", "shape", "training"),
    [
        ("medium-svhn-mnist", "digit-five-cnn", (32, 3), (0.005, 128)),
        ("mild-15", "digit-five-cnn", (32, 3), (0.005, 128)),
        ("reviews-all-books", "word-lstm", (None, None), (0.5, 64)),
    ],
)
def test_gains_tables_have_the_networks_rounds_and_training_of_the_authors(
    method: str, setting: str, network: str, shape: tuple[int | None, int | None], training: tuple[float, int]
) -> None:
    found = settings("gains/table1", setting=setting, method=method, accuracy="target")
    own, data = found["method"], found["data"]
    assert found["model"] == {"name": network}
    assert (data.get("size"), data.get("channels")) == shape
    assert (own["lr"], own["batch_size"]) == training
    if method == "gains":
        assert (own["rounds"], own["adapt_rounds"]) == (100, 100)
    else:
        assert (own["rounds"], found["federation"]["arrivals"]) == (200, {"newcomer": 100})


def test_gains_tables_6_and_7_let_the_paper_s_rule_decide_in_the_units_of_its_program() -> None:
    limits = {
        (own["t_f"], own["t_c"])
        for table in ("gains/table6", "gains/table7")
        for cell in papers.table(table).cells
        if (own := (cell.settings or {})["method"])
    }
    assert limits == {(800, 0.25), (1000, 0.25), (1200, 0.25), (1000, 0.2), (1000, 0.27)}
    own = settings("gains/table6", **{"t-f": "1000", "accuracy": "target"})["method"]
    assert (own["rule"], own["difference"], own["probes"]) == ("fixed", "norm", 20000)


def test_fedpd_tables_have_the_known_classes_of_the_authors() -> None:
    order = np.arange(10)
    np.random.RandomState(66).shuffle(order)
    digits = settings("fedpd/table1", method="fedpd", figure="auroc", domain="mean")["data"]["known"]
    assert digits == [str(i) for i in order[:6]]
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    for known in (4, 6, 8):
        found = settings("fedpd/table2", method="fedpd", figure="auroc", known=str(known))["data"]["known"]
        assert found == [names[i] for i in order[:known]]


@pytest.mark.parametrize("paper", ["fedpd", "gains"])
def test_tables_whose_figures_need_no_threshold_hold_out_no_validation_samples(paper: str) -> None:
    shares = {cell.settings["data"]["validation"] for cell in cells_of(paper) if cell.settings is not None}
    assert shares == {0.0}


def test_rows_of_the_fedpd_ablation_differ_in_one_setting() -> None:
    cell = {"figure": "auroc", "domain": "mean"}
    full = settings("fedpd/table3", method="fedpd", **cell)
    for row, change in (("without-divide", {"maps": "two"}), ("without-conquer", {"align": "none"})):
        assert settings("fedpd/table3", method=row, **cell) == {**full, "method": {**full["method"], **change}}


def test_fedpd_and_proser_have_two_stages_and_differ_in_the_merge_alone() -> None:
    cell = {"figure": "auroc", "domain": "mean"}
    full, proser = (settings("fedpd/table1", method=name, **cell) for name in ("fedpd", "proser"))
    assert proser["method"] == {**full["method"], "importance": "none", "align": "none"}
    assert proser["objective"] == full["objective"]
    for name in ("fedpd", "proser"):
        stages = [
            resolve(settings("fedpd/table1", method=row, **cell)).make_method().params.model_dump()
            for row in (name, f"{name}-one-stage")
        ]
        assert (stages[0]["stages"], stages[0]["closed_share"], stages[0]["rounds"]) == ("two", 0.7, 100)
        assert stages[1] == {**stages[0], "stages": "one"}


def test_the_digit_domains_have_clients_alone_and_one_model_beside_ours() -> None:
    cell = {"figure": "auroc", "domain": "mean"}
    alone, ours, one_model = (
        settings("fedpd/table1", method=name, **cell) for name in ("local-only", "ours", "ours-one-model")
    )
    assert (alone["method"]["name"], alone["method"]["epochs"]) == ("local-only", 100)
    assert (ours["method"]["name"], ours["method"]["rounds"] * ours["method"]["epochs"]) == ("fedpd", 100)
    assert one_model["method"] == {**ours["method"], "mean": "all", "norms": "merged"}
    same = ("data", "partition", "model", "objective", "score")
    assert all(alone[key] == ours[key] == one_model[key] for key in same)


def test_fedpd_tables_crop_flip_and_normalise_cifar_10_and_keep_no_validation_samples() -> None:
    data = settings("fedpd/table2", method="fedpd", known="6", figure="auroc")["data"]
    assert data["augment"] == ["crop", "flip"]
    assert len(data["mean"]) == len(data["std"]) == 3
    assert data["validation"] == 0.0


@pytest.mark.parametrize(
    ("name", "rest", "place"),
    [
        ("fedpd/table1", {"domain": "mean"}, "conv2"),
        ("fedpd/table3", {"domain": "mean"}, "conv2"),
        ("fedpd/table2", {"known": "6"}, "block2"),
    ],
)
def test_fedpd_mixes_where_the_authors_do(name: str, rest: dict[str, str], place: str) -> None:
    for method in ("proser", "fedpd"):
        found = settings(name, method=method, figure="auroc", **rest)
        assert found["objective"] == {"name": "proser", "open_weight": 0.01, "mix_after": place}
        assert place in build(found["model"]["name"], (3, 28, 28), 7, params={}).cuts


def test_another_estimator_does_not_inherit_settings() -> None:
    assert settings("gal/table1", method="gal", data="cifar-100", accuracy="all")["estimator"]["classes"] == 20
    assert settings("gal/table7", method="gal", seed="2023", accuracy="all")["estimator"] == {"name": "ppm"}


def test_gal_tables_have_the_partition_the_threshold_and_the_correction_of_the_paper() -> None:
    cell = {"method": "gal", "data": "cifar-100", "accuracy": "all"}
    plain, skewed = settings("gal/table1", **cell), settings("gal/table6", **cell)
    assert plain["partition"] == {"name": "class-mix", "beta": 0.1}
    assert (plain["method"]["novelty"], plain["method"]["r"]) == ("fixed", 0.5)
    # The stronger skew is that of the pool alone.
    assert skewed == {**plain, "pool_partition": {"name": "class-mix", "beta": 0.001}}
    scaffold = settings("gal/table3", correction="scaffold", **cell)["correction"]
    assert scaffold == {"name": "scaffold", "strength": 1.0}


# --- merging layers ------------------------------------------------------------------------------------------


def test_later_layers_override_and_tables_are_merged() -> None:
    layers: list[Layer] = [
        {"data": {"name": "a", "newcomers": {"x": {"name": "m"}}}, "method": {"epochs": 2}, "measure": "auroc"},
        {"data": {"newcomers": {"y": {"name": "n"}}}, "method": {"name": "fedavg"}, "unit": "h", "waiting": "w"},
        {"seed": 3, "method": {"epochs": 5}, "data": {"name": "b"}},
    ]
    assert settings_of(layers) == {
        "data": {"name": "b", "newcomers": {"x": {"name": "m"}, "y": {"name": "n"}}},
        "method": {"epochs": 5, "name": "fedavg"},
        "seed": 3,
    }
    assert last_of(layers, "unit", "%") == "h"
    assert last_of(layers[:1], "unit", "%") == "%"


def test_a_component_with_another_name_does_not_inherit_settings() -> None:
    layers: list[Layer] = [{"partition": {"name": "dirichlet", "beta": 0.1}}, {"partition": {"name": "iid"}}]
    assert settings_of(layers) == {"partition": {"name": "iid"}}


def test_missing_things_are_named_once_each() -> None:
    assert waiting_of([{"waiting": "a"}, {}, {"waiting": "b"}, {"waiting": "a"}]) == "a; b"
    assert waiting_of([{}]) is None


def test_a_measure_is_merged_from_several_layers() -> None:
    weights, figures, part = {"weights": [3, 1]}, {"figures": ["a", "b"]}, {"part": "x"}
    whole = measure_of([{"measure": weights}, {"measure": figures}, {"measure": part}], "%")
    assert whole is not None
    assert (whole.figures, whole.weights, whole.part, whole.factor) == (("a", "b"), (3, 1), "x", 100)
    alone = measure_of([{"measure": weights}, {"measure": "a"}], "classes")
    assert alone is not None
    assert (alone.figures, alone.weights, alone.factor) == (("a",), (), 1)
    assert measure_of([{"measure": weights}], "%") is None


def test_an_undefined_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="data = c is not defined"):
        layers_of([{"keys": {"data": {"a": {}}}}, {}], {"data": "c"})


# --- results have the figures --------------------------------------------------------------------------------

UNTRAINED = ("epochs", "distil_epochs", "finetune_rounds", "novel_rounds", "adapt_rounds", "rounds")


def shrunk(found: Settings) -> Settings:
    """Return a small version of the run: digits, a small network, and almost no training."""
    small = {key: (0 if "epochs" in key else 1) for key in UNTRAINED if key in found["method"]}
    return {
        **found,
        "data": {**found["data"], "name": "digits", "train_samples": 200, "test_samples": 100, "size": 8},
        "method": {**found["method"], **small},
        "model": {"name": "mlp", "hidden": [8]},
        "engine": {"workers": 0},
    }


def unchanged(table: Settings) -> None:
    pass


def two_domains(table: Settings) -> None:
    table["data"] |= {"name": ["digits", "synthetic:8x8x1:10:100"], "channels": 1}


def ten_classes(table: Settings) -> None:
    table["data"] |= {"known": 6, "novel": 4}
    table["federation"] |= {"clients": 2}


def digits_arrive(table: Settings) -> None:
    newcomer = table["data"]["newcomers"]["newcomer"]
    table["data"]["newcomers"] = {"newcomer": {**newcomer, "name": "digits", "resize": True}}
    table["federation"].pop("arrivals", None)


CASES: list[tuple[str, dict[str, str], Callable[[Settings], None]]] = [
    ("fedov/table11", {"data": "mnist", "partition": "c2", "method": "fedov"}, unchanged),
    ("fedov/table16", {"data": "mnist", "known": "3", "method": "proser-dd"}, unchanged),
    ("fedpd/table1", {"method": "softmax", "domain": "mean"}, two_domains),
    ("fedoss/table1", {"unknown": "5", "method": "proser"}, unchanged),
    ("gal/table1", {"data": "cifar-100", "method": "gal"}, ten_classes),
    ("gal/table7", {"seed": "2024", "method": "gal"}, ten_classes),
    ("gains/table1", {"setting": "mild-15", "method": "gains"}, digits_arrive),
    ("gains/table1", {"setting": "mild-15", "method": "fedavg"}, digits_arrive),
]


@pytest.mark.parametrize(("table", "keys", "change"), CASES)
def test_the_result_of_a_run_has_the_figures_of_its_cells(
    table: str, keys: dict[str, str], change: Callable[[Settings], None], tmp_path: Path
) -> None:
    cells = papers.table(table).only(keys).cells
    assert cells[0].settings is not None
    small = shrunk(cells[0].settings)
    change(small)
    result = api.run(small, out=tmp_path / "run").result
    for cell in cells:
        assert cell.measure is not None
        ours = cell.measure.of(result)
        assert 0 <= ours <= (100 if cell.unit == "%" else 1000)
