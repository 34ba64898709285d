"""What a sweep varies: the [sweep] table of a config file, and the options that add to it."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedwild.results.comparison.grouping import FIRST, phrases
from fedwild.core.layers import Table, merge
from fedwild.runs.config import nested
from fedwild.core.errors import UserError
from fedwild.core.settings import unknown_key

KEYS = ("seeds", "grid", "variants")
MAX_SEEDS = 10_000
SEEDS_ALLOWED = "it must be a number of seeds, such as 5, or different whole numbers from 0 on, such as 0, 1, 2"


@dataclass(frozen=True)
class Combination:
    """One choice on every axis: all settings of one row."""

    label: str
    """Empty if nothing but the seed is varied."""
    varied: dict[str, Any]
    """`section.key` = value, and `variant` = label."""
    layer: Table
    """The same as tables for `resolve`."""


@dataclass(frozen=True)
class Axes:
    """What is varied: each value of each key of the grid with each variant and each seed."""

    seeds: tuple[int, ...] = ()
    """None: the config's own seed."""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    variants: dict[str, Table] = field(default_factory=dict)
    """Tables of settings by label."""

    def varied(self) -> list[str]:
        """All settings that are varied."""
        return list(dict.fromkeys([*self.grid, *self.keys_of_variants()]))

    def keys_of_variants(self) -> list[str]:
        return [key for layer in self.variants.values() for key, _ in _dotted(layer)]

    def combinations(self) -> Iterator[Combination]:
        """Every combination, the last key of the grid varying fastest."""
        telling = [key for key, values in self.grid.items() if len(values) > 1] or list(self.grid)
        telling.sort(key=lambda key: key != FIRST)
        points = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        names = phrases([(chosen, telling) for chosen in points])
        for label, variant in self.variants.items() or [("", {})]:
            for chosen, told in zip(points, names, strict=True):
                layer = merge(variant, *(nested(key, value) for key, value in chosen.items()))
                name = " ".join(filter(None, (label, told)))
                yield Combination(name, {**({"variant": label} if label else {}), **chosen}, layer)


def read_axes(table: Any, grid: Sequence[str] = (), seeds: str | None = None, fixed: Table | None = None) -> Axes:
    """The axes of a [sweep] table with `--grid` and `--seeds` over it; `fixed` are the settings that --set gave."""
    wrong: list[str] = []
    if not isinstance(table, Mapping):
        raise UserError(f"sweep = {table!r} is not allowed: it must be a table, such as [sweep].")
    wrong += [unknown_key(f"sweep.{key}", key, KEYS) for key in table if key not in KEYS]
    if seeds is None:
        chosen = read_seeds(table["seeds"], "sweep.seeds =", wrong) if "seeds" in table else ()
    else:
        chosen = read_seeds(seeds_value(seeds), "--seeds", wrong)
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
            "nothing is varied: give --grid method.lr=0.01,0.1 or --seeds 3, or put [sweep] into the config."
        )
    return axes


def read_seeds(value: Any, said: str, wrong: list[str]) -> tuple[int, ...]:
    """The seeds that a number or a list stands for."""
    if _is_whole(value) and 1 <= value <= MAX_SEEDS:
        return tuple(range(value))
    listed = isinstance(value, list) and all(_is_whole(seed) and 0 <= seed < 2**63 for seed in value)
    if listed and 0 < len(set(value)) == len(value):
        return tuple(value)
    wrong.append(f"{said} {value!r} is not allowed: {SEEDS_ALLOWED}.")
    return ()


def seeds_value(text: str) -> Any:
    """What is typed after --seeds: 5, or 0,1,2."""
    return _toml(text, _toml(f"[{text}]", text))


def read_grid(table: Any, wrong: list[str]) -> dict[str, list[Any]]:
    """`section.key` = values; written with a point, or as tables."""
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
    """What is typed after --grid: method.lr=0.01,0.1."""
    key, equals, raw = (part.strip() for part in text.partition("="))
    if not equals or not raw or "." not in key or not all(key.split(".")):
        hint = _not_a_setting(key) if key == "seed" else "write section.key=value,value, such as method.lr=0.01,0.1"
        raise UserError(f"--grid {text!r} is not allowed: {hint}.")
    whole = _toml(f"[{raw}]", None)
    return key, whole if whole is not None else [_toml(piece, piece.strip()) for piece in raw.split(",")]


def read_variants(rows: Any, wrong: list[str]) -> dict[str, Table]:
    """Tables of settings by their label."""
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        wrong.append(f"sweep.variants = {rows!r} is not allowed: it must be tables, each [[sweep.variants]].")
        return {}
    variants: dict[str, Table] = {}
    for number, row in enumerate(rows, start=1):
        label = row.get("label")
        if not isinstance(label, str) or not label.strip() or label in variants:
            wrong.append(f"label = {label!r} of sweep variant {number} is not allowed: each needs a text of its own.")
            continue
        given = dict(_dotted({key: value for key, value in row.items() if key != "label"}))
        wrong += [
            f"{key} of variant {label!r} is not allowed: {_not_a_setting(key)}." for key in given if "." not in key
        ]
        variants[label] = merge(*(nested(key, value) for key, value in given.items() if "." in key))
    return variants


def _dotted(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Sections spelt out: `method = { lr = 1 }` is `method.lr = 1`."""
    for key, value in table.items():
        if isinstance(value, Mapping) and "." not in key:
            yield from ((f"{key}.{inner}", item) for inner, item in value.items())
        else:
            yield key, value


def _named_twice(axes: Axes, fixed: Table) -> list[str]:
    """Settings that two sources fix, of which one would be in vain."""
    given, twice = dict(_dotted(fixed)), set(axes.grid) & set(axes.keys_of_variants())
    return [
        *(f"{key} is in the grid and in a variant: only one of them can vary it." for key in sorted(twice)),
        *(f"--set {key} is not allowed: the sweep varies it." for key in axes.varied() if key in given),
        *(["--set seed is not allowed: the sweep varies it."] if axes.seeds and "seed" in given else []),
    ]


def _not_a_setting(key: str) -> str:
    return "seeds are given by sweep.seeds or --seeds" if key == "seed" else "write section.key, such as method.lr"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _toml(text: str, otherwise: Any) -> Any:
    """A value as TOML has it; something else if it is none."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return otherwise
    return parsed["value"] if len(parsed) == 1 else otherwise
