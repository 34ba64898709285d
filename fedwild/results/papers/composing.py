"""Merging the settings of paper, table, block and key values for one cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedwild.core.layers import Table, merge
from fedwild.results.papers.measures import Measure
from fedwild.runs.config import NAMED

Layer = Mapping[str, Any]
# The keys of a layer that are not settings.
NOT_SETTINGS = ("measure", "unit", "waiting")
# Figures of a run are shares.
FACTORS = {"%": 100.0}


def layers_of(levels: Sequence[Layer], keys: Mapping[str, str]) -> list[Layer]:
    """Return the layers for all cells of paper, table and block, then those for the values of the cell's keys."""
    layers: list[Layer] = []
    for level in levels:
        own = {key: level[key] for key in NOT_SETTINGS if key in level}
        layers.append({**level.get("settings", {}), **own})
    for key, value in keys.items():
        defined = [values[value] for level in levels if value in (values := level.get("keys", {}).get(key, {}))]
        if not defined:
            raise ValueError(f"{key} = {value} is not defined")
        layers += defined
    return layers


def settings_of(layers: Iterable[Layer]) -> Table:
    """Return the merged settings of all layers; as in a config, a component with another name loses its settings."""
    settings = ({key: value for key, value in layer.items() if key not in NOT_SETTINGS} for layer in layers)
    return merge(*settings, named=NAMED)


def unit_of(layers: Iterable[Layer]) -> str:
    """Return the last unit of the layers, or per cent."""
    return ["%", *(layer["unit"] for layer in layers if "unit" in layer)][-1]


def measure_of(layers: Iterable[Layer], unit: str) -> Measure | None:
    """Return the merged measure of all layers; None if no layer names a figure."""
    merged: dict[str, Any] = {}
    for layer in layers:
        measure = layer.get("measure", {})
        merged |= {"figures": [measure]} if isinstance(measure, str) else measure
    if "figures" not in merged:
        return None
    several = len(merged["figures"]) > 1
    return Measure(
        tuple(merged["figures"]),
        merged.get("join", "mean"),
        tuple(merged.get("weights", ())) if several else (),
        merged.get("part"),
        merged.get("over"),
        FACTORS.get(unit, 1.0),
    )


def waiting_of(layers: Iterable[Layer]) -> str | None:
    """Return everything that is missing, as one text."""
    reasons = dict.fromkeys(layer["waiting"] for layer in layers if "waiting" in layer)
    return "; ".join(reasons) or None
