"""What a sweep varies: tables, options and their errors."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from fedwild.core.errors import UserError
from fedwild.results.sweeps.axes import Axes, read_axes


def problems(table: Any, *grid: str, seeds: str | None = None, fixed: dict[str, Any] | None = None) -> str:
    with pytest.raises(UserError) as problem:
        read_axes(table, grid, seeds, fixed)
    return str(problem.value)


def test_combinations_are_ordered_with_the_last_key_fastest() -> None:
    axes = read_axes({"grid": {"method.name": ["fedavg", "fedov"], "method.lr": [0.01, 0.1]}})
    assert [combination.label for combination in axes.combinations()] == [
        "method=fedavg method.lr=0.01",
        "method=fedavg method.lr=0.1",
        "method=fedov method.lr=0.01",
        "method=fedov method.lr=0.1",
    ]
    assert list(axes.combinations())[3].layer == {"method": {"name": "fedov", "lr": 0.1}}


def test_combinations_are_named_by_what_varies_the_method_first() -> None:
    axes = read_axes(
        {"grid": {"method.lr": [1, 2], "method.epochs": [1], "method.name": ["fedavg"], "data.known": [4, 5]}}
    )
    assert next(axes.combinations()).label == "method.lr=1 data.known=4"
    axes = read_axes({"grid": {"method.lr": [1, 2], "method.name": ["fedavg", "fedov"]}})
    assert next(axes.combinations()).label == "method=fedavg method.lr=1"
    assert next(read_axes({"grid": {"method.lr": [1]}}).combinations()).label == "method.lr=1"


def test_variants_are_combined_with_the_grid() -> None:
    text = """
        [grid]
        "method.lr" = [1, 2]
        [[variants]]
        label = "plain"
        [[variants]]
        label = "prox"
        correction = { name = "prox" }
        "score.name" = "energy"
    """
    combinations = list(read_axes(tomllib.loads(text)).combinations())
    assert [c.label for c in combinations] == [f"{v} method.lr={lr}" for v in ("plain", "prox") for lr in (1, 2)]
    assert combinations[2].varied == {"variant": "prox", "method.lr": 1}
    assert combinations[2].layer == {"correction": {"name": "prox"}, "score": {"name": "energy"}, "method": {"lr": 1}}


def test_dotted_keys_may_be_quoted() -> None:
    quoted, bare = (tomllib.loads(text) for text in ('[grid]\n"method.lr" = [1]', "[grid]\nmethod.lr = [1]"))
    assert read_axes(quoted) == read_axes(bare)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("method.lr=0.01,0.1", [0.01, 0.1]),
        ("method.name=fedavg,fedov", ["fedavg", "fedov"]),
        ("partition.name=dirichlet:0.1, iid", ["dirichlet:0.1", "iid"]),
        ("data.known=[0, 1],[2]", [[0, 1], [2]]),
        ("data.known=4,all", [4, "all"]),
        ("method.decay=true", [True]),
        ('method.note="a,b","c"', ["a,b", "c"]),
    ],
)
def test_values_on_the_command_line_are_parsed_like_those_of_set(text: str, values: list[Any]) -> None:
    (found,) = read_axes({}, [text]).grid.values()
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_options_extend_and_override_the_table() -> None:
    table = {"seeds": 2, "grid": {"method.lr": [1], "method.epochs": [3]}}
    axes = read_axes(table, ["method.lr=5,6", "data.known=4"], "7,3")
    assert axes.grid == {"method.lr": [5, 6], "method.epochs": [3], "data.known": [4]}
    assert axes.seeds == (7, 3)


@pytest.mark.parametrize(("text", "seeds"), [("3", (0, 1, 2)), ("4,2", (4, 2)), ("[5]", (5,)), ("0, 1", (0, 1))])
def test_seeds_are_a_number_or_a_list(text: str, seeds: tuple[int, ...]) -> None:
    assert read_axes({}, seeds=text).seeds == seeds
    assert read_axes({"seeds": list(seeds)}).seeds == seeds


@pytest.mark.parametrize("text", ["0", "-1", "1,1", "a", "1,b", "1.5", "true", "0,-1", "", "[]", "99999999"])
def test_other_seeds_are_rejected(text: str) -> None:
    message = problems({}, seeds=text)
    assert message.startswith("--seeds ")
    assert "is not allowed" in message


@pytest.mark.parametrize("text", ["method.lr", "method.lr=", "lr=1,2", "seed=1,2", "=1", ".lr=1"])
def test_other_grids_are_rejected(text: str) -> None:
    assert problems({}, text).startswith(f"--grid {text!r} is not allowed: ")


def test_one_error_reports_all_problems_of_the_table() -> None:
    table = {
        "sedes": 3,
        "seeds": "many",
        "grid": {"method.lr": 0.1, "seed": [1, 2], "method.epochs": []},
        "variants": [{"method": {"lr": 1}}, {"label": "a", "lr": 1}, {"label": "a"}],
    }
    message = problems(table).splitlines()
    assert len(message) == 8
    grid = ("sweep.grid.method.lr = 0.1", "sweep.grid.seed", "sweep.grid.method.epochs = []")
    wanted = ("Did you mean 'seeds'", "sweep.seeds = 'many'", *grid, "variant 1", "lr of variant 'a'", "variant 3")
    for line, words in zip(message, wanted, strict=True):
        assert words in line


@pytest.mark.parametrize("table", [3, {"grid": 3}, {"variants": 3}, {"variants": [3]}])
def test_anything_but_tables_is_rejected(table: Any) -> None:
    assert "it must be" in problems(table)


def test_a_setting_cannot_be_set_twice() -> None:
    table = {"grid": {"method.lr": [1]}, "variants": [{"label": "a", "method.lr": 2}]}
    assert "method.lr is in the grid and in a variant" in problems(table)
    assert "--set method.lr is not allowed: the sweep varies it" in problems(
        {}, "method.lr=1", fixed={"method": {"lr": 2}}
    )


def test_a_sweep_without_variation_is_rejected() -> None:
    assert problems({}).startswith("nothing varies")


def test_files_of_the_same_name_get_full_paths() -> None:
    axes = Axes(grid={"data.name": ["/x/a/d.npz", "/x/b/d.npz"]})
    assert [item.label for item in axes.combinations()] == ["data=/x/a/d.npz", "data=/x/b/d.npz"]
