"""What is said of a table, of a block and of each key's value, put together for one cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedwild.core.layers import Table, merge
from fedwild.results.papers.measures import Measure
from fedwild.runs.config import NAMED

Layer = Mapping[str, Any]
# What a layer says beside settings.
OWN_WORDS = ("measure", "unit", "waiting")
# Figures of a run are fractions.
FACTORS = {"%": 100.0}


def layers_of(levels: Sequence[Layer], keys: Mapping[str, str]) -> list[Layer]:
    """What paper, table and block say of all their cells, then what each of them says of every key's value."""
    layers: list[Layer] = []
    for level in levels:
        own = {word: level[word] for word in OWN_WORDS if word in level}
        layers.append({**level.get("settings", {}), **own})
    for key, value in keys.items():
        said = [meanings[value] for level in levels if value in (meanings := level.get("keys", {}).get(key, {}))]
        if not said:
            raise ValueError(f"nobody says what {key} = {value} means")
        layers += said
    return layers


def settings_of(layers: Iterable[Layer]) -> Table:
    """Return the merged settings of all layers; as in a config, a component with another name loses its settings."""
    settings = ({key: value for key, value in layer.items() if key not in OWN_WORDS} for layer in layers)
    return merge(*settings, named=NAMED)


def unit_of(layers: Iterable[Layer]) -> str:
    """The last unit said, per cent if there is none."""
    return ["%", *(layer["unit"] for layer in layers if "unit" in layer)][-1]


def measure_of(layers: Iterable[Layer], unit: str) -> Measure | None:
    """The measure that all layers give together; None if nobody names a figure."""
    said: dict[str, Any] = {}
    for layer in layers:
        measure = layer.get("measure", {})
        said |= {"figures": [measure]} if isinstance(measure, str) else measure
    if "figures" not in said:
        return None
    several = len(said["figures"]) > 1
    return Measure(
        tuple(said["figures"]),
        said.get("join", "mean"),
        tuple(said.get("weights", ())) if several else (),
        said.get("part"),
        said.get("over"),
        FACTORS.get(unit, 1.0),
    )


def waiting_of(layers: Iterable[Layer]) -> str | None:
    """All that is waited for."""
    reasons = dict.fromkeys(layer["waiting"] for layer in layers if "waiting" in layer)
    return "; ".join(reasons) or None
