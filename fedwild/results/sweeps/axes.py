"""What a sweep varies: the [sweep] table of a config file, and the options that add to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedwild.core.errors import UserError
from fedwild.core.layers import Table, merge
from fedwild.core.settings import unknown_key
from fedwild.core.toml import parse_toml
from fedwild.results.comparison.grouping import METHOD_NAME, phrases
from fedwild.runs.config import nested

KEYS = ("seeds", "grid", "variants")
MAX_SEEDS = 10_000
SEEDS_ALLOWED = "it must be a number of seeds, such as 5, or different seeds from 0, such as 0, 1, 2"


@dataclass(frozen=True)
class Combination:
    """One value on every axis: the settings of one row."""

    label: str
    """Empty if only the seed varies."""
    varied: dict[str, Any]
    """`section.key` = value, and `variant` = label."""
    layer: Table
    """The same as tables for `resolve`."""


@dataclass(frozen=True)
class Axes:
    """All values of the grid's keys are combined with all variants and all seeds."""

    seeds: tuple[int, ...] = ()
    """Empty for the seed of the config."""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    variants: dict[str, Table] = field(default_factory=dict)
    """Tables of settings by label."""

    def varied(self) -> list[str]:
        """Return all settings that vary."""
        return list(dict.fromkeys([*self.grid, *self.keys_of_variants()]))

    def keys_of_variants(self) -> list[str]:
        return [key for layer in self.variants.values() for key, _ in _dotted(layer)]

    def combinations(self) -> Iterator[Combination]:
        """Yield every combination; the last key of the grid changes fastest."""
        shown = [key for key, values in self.grid.items() if len(values) > 1] or list(self.grid)
        shown.sort(key=lambda key: key != METHOD_NAME)
        points = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        names = phrases([(chosen, shown) for chosen in points])
        for label, variant in self.variants.items() or [("", {})]:
            for chosen, phrase in zip(points, names, strict=True):
                layer = merge(variant, *(nested(key, value) for key, value in chosen.items()))
                name = " ".join(filter(None, (label, phrase)))
                yield Combination(name, {**({"variant": label} if label else {}), **chosen}, layer)


def read_axes(table: Any, grid: Sequence[str] = (), seeds: str | None = None, fixed: Table | None = None) -> Axes:
    """Return the axes of a [sweep] table and of `--grid` and `--seeds`; `fixed` are the settings of --set."""
    wrong: list[str] = []
    if not isinstance(table, Mapping):
        raise UserError(f"sweep = {table!r} is not allowed: it must be a table, such as [sweep].")
    wrong += [unknown_key(f"sweep.{key}", key, KEYS) for key in table if key not in KEYS]
    if seeds is None:
        chosen = read_seeds(table["seeds"], "sweep.seeds =", wrong) if "seeds" in table else ()
    else:
        chosen = read_seeds(_toml(seeds, _toml(f"[{seeds}]", seeds)), "--seeds", wrong)
    axes = Axes(
        chosen,
        {**read_grid(table.get("grid", {}), wrong), **dict(grid_value(text) for text in grid)},
        read_variants(table.get("variants", []), wrong),
    )
    wrong += _named_twice(axes, fixed or {})
    if wrong:
        raise UserError(*wrong)
    if not (axes.seeds or axes.grid or axes.variants):
        raise UserError(
            "nothing varies: use --grid method.lr=0.01,0.1 or --seeds 3, or add a [sweep] table to the config."
        )
    return axes


def read_seeds(value: Any, source: str, wrong: list[str]) -> tuple[int, ...]:
    """Return the seeds that a number or a list stands for."""
    if _is_whole(value) and 1 <= value <= MAX_SEEDS:
        return tuple(range(value))
    listed = isinstance(value, list) and all(_is_whole(seed) and 0 <= seed < 2**63 for seed in value)
    if listed and 0 < len(set(value)) == len(value):
        return tuple(value)
    wrong.append(f"{source} {value!r} is not allowed: {SEEDS_ALLOWED}.")
    return ()


def read_grid(table: Any, wrong: list[str]) -> dict[str, list[Any]]:
    """Return `section.key` = values, written as dotted keys or as tables."""
    if not isinstance(table, Mapping):
        wrong.append(f"sweep.grid = {table!r} is not allowed: it must be a table, such as [sweep.grid].")
        return {}
    grid = {}
    for key, values in _dotted(table):
        if "." not in key:
            wrong.append(f"sweep.grid.{key} is not allowed: {_not_a_setting(key)}.")
        elif not isinstance(values, list) or not values:
            wrong.append(f"sweep.grid.{key} = {values!r} is not allowed: it must be a list of values.")
        else:
            grid[key] = values
    return grid


def grid_value(text: str) -> tuple[str, list[Any]]:
    """Return the key and values of --grid, such as method.lr=0.01,0.1."""
    key, equals, raw = (part.strip() for part in text.partition("="))
    if not equals or not raw or "." not in key or not all(key.split(".")):
        hint = _not_a_setting(key) if key == "seed" else "write section.key=value,value, such as method.lr=0.01,0.1"
        raise UserError(f"--grid {text!r} is not allowed: {hint}.")
    whole = _toml(f"[{raw}]", None)
    return key, whole if whole is not None else [_toml(piece, piece.strip()) for piece in raw.split(",")]


def read_variants(rows: Any, wrong: list[str]) -> dict[str, Table]:
    """Return tables of settings by label."""
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        wrong.append(f"sweep.variants = {rows!r} is not allowed: it must be tables, each [[sweep.variants]].")
        return {}
    variants: dict[str, Table] = {}
    for number, row in enumerate(rows, start=1):
        label = row.get("label")
        if not isinstance(label, str) or not label.strip() or label in variants:
            wrong.append(f"label = {label!r} of sweep variant {number} is not allowed: variants need different labels.")
            continue
        given = dict(_dotted({key: value for key, value in row.items() if key != "label"}))
        wrong += [
            f"{key} of variant {label!r} is not allowed: {_not_a_setting(key)}." for key in given if "." not in key
        ]
        variants[label] = merge(*(nested(key, value) for key, value in given.items() if "." in key))
    return variants


def _dotted(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values: `method = { lr = 1 }` is `method.lr = 1`."""
    for key, value in table.items():
        if isinstance(value, Mapping) and "." not in key:
            yield from ((f"{key}.{inner}", item) for inner, item in value.items())
        else:
            yield key, value


def _named_twice(axes: Axes, fixed: Table) -> list[str]:
    """Return errors for settings that are set twice."""
    given, twice = dict(_dotted(fixed)), set(axes.grid) & set(axes.keys_of_variants())
    return [
        *(f"{key} is in the grid and in a variant: only one of them may set it." for key in sorted(twice)),
        *(f"--set {key} is not allowed: the sweep varies it." for key in axes.varied() if key in given),
        *(["--set seed is not allowed: the sweep varies it."] if axes.seeds and "seed" in given else []),
    ]


def _not_a_setting(key: str) -> str:
    return "set seeds with sweep.seeds or --seeds" if key == "seed" else "write section.key, such as method.lr"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _toml(text: str, otherwise: Any) -> Any:
    """Return text parsed as a TOML value, or `otherwise` if it is not one."""
    try:
        parsed = parse_toml(f"value = {text}")
    except ValueError:
        return otherwise
    return parsed["value"] if len(parsed) == 1 else otherwise
