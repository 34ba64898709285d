"""Layered settings: later layers win, and a renamed part loses its settings."""

from __future__ import annotations

from typing import Any

import pytest

from fedwild.core.layers import merge


def test_no_layers_give_an_empty_table() -> None:
    assert merge() == {}


def test_later_layers_win_section_by_section() -> None:
    table = merge({"seed": 0, "method": {"lr": 0.1, "epochs": 2}}, {"seed": 1, "method": {"lr": 0.5}})
    assert table == {"seed": 1, "method": {"lr": 0.5, "epochs": 2}}


def test_tables_within_sections_are_merged_at_any_depth() -> None:
    table = merge(
        {"data": {"newcomers": {"ann": {"name": "a", "resize": True}}}},
        {"data": {"newcomers": {"ann": {"name": "b"}, "ben": {"name": "c"}}}},
    )
    assert table == {"data": {"newcomers": {"ann": {"name": "b", "resize": True}, "ben": {"name": "c"}}}}


def test_lists_are_replaced() -> None:
    assert merge({"model": {"hidden": [8, 8]}}, {"model": {"hidden": [4]}}) == {"model": {"hidden": [4]}}


@pytest.mark.parametrize(("old", "new"), [({"lr": 1}, 3), (3, {"lr": 1}), ({"lr": 1}, None), ("text", [1])])
def test_a_value_of_another_kind_replaces_the_old_one(old: Any, new: Any) -> None:
    assert merge({"method": old}, {"method": new}, named=["method"]) == {"method": new}


def test_a_named_part_with_another_name_loses_its_old_settings() -> None:
    layers: tuple[dict[str, Any], ...] = ({"method": {"name": "fedprox", "mu": 1}}, {"method": {"name": "fedavg"}})
    assert merge(*layers, named=["method"]) == {"method": {"name": "fedavg"}}
    assert merge(*layers) == {"method": {"name": "fedavg", "mu": 1}}


@pytest.mark.parametrize("new", [{"name": "fedprox", "lr": 1}, {"lr": 1}, {"name": None, "lr": 1}])
def test_a_named_part_keeps_its_settings_if_its_name_stays(new: dict[str, Any]) -> None:
    table = merge({"method": {"name": "fedprox", "mu": 1}}, {"method": new}, named=["method"])
    assert (table["method"]["mu"], table["method"]["lr"]) == (1, 1)


def test_a_name_inside_a_section_that_is_not_named_is_an_ordinary_setting() -> None:
    table = merge({"data": {"name": "digits", "known": 6}}, {"data": {"name": "mnist"}}, named=["method"])
    assert table == {"data": {"name": "mnist", "known": 6}}


def test_the_result_shares_nothing_with_the_layers() -> None:
    first: dict[str, Any] = {"data": {"known": [1, 2]}, "method": {"schedule": {"steps": [1]}}}
    table = merge(first, {"method": {"lr": 1}})
    table["data"]["known"].append(3)
    table["method"]["schedule"]["steps"].append(2)
    assert first == {"data": {"known": [1, 2]}, "method": {"schedule": {"steps": [1]}}}
