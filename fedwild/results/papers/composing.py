"""What is said of a table, of a block and of each key's value, put together for one cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedwild.runs.components import KINDS
from fedwild.results.papers.measures import Measure

Layer = Mapping[str, Any]
# What a layer says beside settings.
OWN_WORDS = ("measure", "unit", "waiting")
NAMED = (*KINDS, "method", "model", "partition")
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


def settings_of(layers: Iterable[Layer]) -> dict[str, Any]:
    """Settings of all layers, later ones winning. As in a config, a part that changes its name loses its settings."""
    settings: dict[str, Any] = {}
    for layer in layers:
        for section, new in layer.items():
            if section not in OWN_WORDS:
                old = settings.get(section, {})
                settings[section] = _joined({} if _renamed(section, old, new) else old, new)
    return settings


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


def _renamed(section: str, old: Any, new: Any) -> bool:
    return section in NAMED and None not in (old.get("name"), new.get("name")) and old["name"] != new["name"]


def _joined(old: Any, new: Any) -> Any:
    """Tables add up, anything else is replaced. Nothing of `new` itself is in what is returned, only copies."""
    if isinstance(new, Mapping):
        before = old if isinstance(old, dict) else {}
        return {**before, **{key: _joined(before.get(key), value) for key, value in new.items()}}
    return list(new) if isinstance(new, list) else new
