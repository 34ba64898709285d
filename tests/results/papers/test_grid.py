"""The text of a table's figures: rows, columns, deviations and missing figures."""

from __future__ import annotations

import pytest

from fedwild.results.papers.grid import figures_of, value_and_deviation


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


@pytest.mark.parametrize("line", ["mnist 1", "mnist 1 2 3"])
def test_a_line_with_too_few_or_too_many_figures_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="zip"):
        list(figures_of({"rows": ["data"], "columns": {"method": ["a", "b"]}, "cells": line}))


def test_a_deviation_follows_a_plus_minus_sign() -> None:
    assert value_and_deviation("40.0±1.7") == (40.0, 1.7)
    assert value_and_deviation("98.6±0") == (98.6, 0.0)
    assert value_and_deviation("12") == (12.0, None)
