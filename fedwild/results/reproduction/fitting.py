"""Fitting a paper's run to this machine: other data for data that is missing, and fewer rounds or epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedwild.data.sources import DATASETS
from fedwild.results.papers.library import available_name, data_names, is_missing
from fedwild.runs.config import Config, resolve

DIGITS = "digits"
CLASSES = DATASETS[DIGITS].classes
# Settings that only fit the missing data set.
DATA_SETTINGS = ("size", "channels", "mean", "std", "augment", "train_samples", "test_samples", "domains", "stages")


def with_generated(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings with generated stand-ins for missing data that has one, and these by the missing name."""
    stand_ins = {name: mine for name in data_names(settings) if (mine := available_name(name)) != name}
    if not stand_ins:
        return dict(settings), {}
    data = dict(settings["data"])
    own = data["name"]
    data["name"] = stand_ins.get(own, own) if isinstance(own, str) else [stand_ins.get(name, name) for name in own]
    if "newcomers" in data:
        data["newcomers"] = {
            client: {**given, "name": stand_ins.get(given["name"], given["name"])}
            for client, given in data["newcomers"].items()
        }
    return {**settings, "data": data}, stand_ins


# Settings that only fit the paper's network: where samples are mixed, and a fixed cosine below which they are novel.
NETWORK_SETTINGS = {"objective": ("mix_after",), "method": ("novelty", "r")}


def with_stand_in(settings: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return the settings with available data, and a text that says what changed; None if nothing did.

    Data with a generated stand-in counts as available.
    """
    data = settings.get("data", {})
    names = [data["name"]] if isinstance(data.get("name", DIGITS), str) else data["name"]
    newcomers = [newcomer["name"] for newcomer in data.get("newcomers", {}).values()]
    missing = [name for name in names if is_missing(available_name(name))]
    newcomer_missing = any(is_missing(available_name(name)) for name in newcomers)
    if not missing and not newcomer_missing:
        return dict(settings), None
    if len(names) > 1 and not all(map(is_missing, names)) and not newcomer_missing:
        here = [name for name in names if name not in missing]
        return {**settings, "data": {**data, "name": here}}, f"without {', '.join(missing)}"
    return _on_digits(settings, names), f"digits for {', '.join(dict.fromkeys([*names, *newcomers]))}"


def _on_digits(settings: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the settings for digits, with the same shares of known and novel classes, and the default network."""
    data = {key: value for key, value in settings["data"].items() if key not in DATA_SETTINGS}
    counts = {key: _as_digits(data[key], _class_count(names[0], data)) for key in ("known", "novel") if key in data}
    data |= {"name": DIGITS, **counts}
    if "known" not in data:
        data["known"] = "all"
    if "novel" in data and settings["data"].get("stages"):
        stages = len(settings["data"]["stages"])
        data["stages"] = [max(1, (data["novel"] + stage) // stages) for stage in range(stages)]
    if "newcomers" in data:
        named = {name: given.get("classes") or () for name, given in data["newcomers"].items()}
        data["newcomers"] = {
            name: {"name": DIGITS, **({"classes": own} if own and {*map(str, own)} <= set(CLASSES) else {})}
            for name, own in named.items()
        }
    changed: dict[str, Any] = {**settings, "data": data}
    # The default network, which suits small images.
    changed.pop("model", None)
    for section, keys in NETWORK_SETTINGS.items():
        if section in settings:
            changed[section] = {key: value for key, value in settings[section].items() if key not in keys}
    if len(names) > 1:
        changed["partition"] = {"name": "iid"}
        changed["federation"] = {**settings.get("federation", {}), "clients": len(names)}
    if "classes" in settings.get("estimator", {}) and isinstance(data.get("novel"), int):
        changed["estimator"] = {**settings["estimator"], "classes": data["novel"]}
    return changed


def _class_count(name: str, data: Mapping[str, Any]) -> int:
    """Return the number of classes of a data set; for one that fedwild does not have, from the settings."""
    if name in DATASETS:
        return DATASETS[name].class_count
    named = sum(count for key in ("known", "novel", "unknown") if isinstance(count := data.get(key), int))
    return max(named, len(CLASSES))


def _as_digits(classes: Any, of: int) -> Any:
    """Return the same share of ten classes; names of digits are kept, other names count as a number."""
    if isinstance(classes, list):
        return classes if {str(name) for name in classes} <= set(CLASSES) else _as_digits(len(classes), of)
    if not isinstance(classes, int) or classes == 0:
        return classes
    return min(len(CLASSES), max(1, round(classes * len(CLASSES) / of)))


def scaled(config: Config, scale: float) -> Config:
    """Return the config with all numbers of rounds multiplied by `scale`, at least one each.

    If a single round remains, the rest of the reduction applies to its epochs. The rounds in which clients arrive
    scale as well. A run that is evaluated after some rounds is evaluated after each, so that every point of a curve has
    its round. Data, network and step sizes do not change.
    """
    if scale == 1:
        return config
    table = config.table()
    method: dict[str, Any] = table["method"]
    before = method.get("rounds", 1)
    rounds = {key: _times(value, scale) for key, value in method.items() if key.endswith("rounds")}
    after = rounds.get("rounds", 1)
    rest = min(1.0, scale * before) if after == 1 else 1.0
    epochs = {key: _times(value, rest) for key, value in method.items() if key.endswith("epochs")}
    method |= rounds | epochs
    arrivals = table["federation"]["arrivals"]
    table["federation"]["arrivals"] = {
        name: min(round(when * after / before), after - 1) if isinstance(when, int) else when
        for name, when in arrivals.items()
    }
    table["evaluation"]["every"] = min(1, table["evaluation"]["every"])
    return resolve(table)


def scaled_round(number: int, scale: float) -> int:
    """Return the round of a shortened run that corresponds to a round of the whole one."""
    return max(1, round(number * scale))


def _times(count: Any, factor: float) -> Any:
    """Return a positive number multiplied by the factor, at least 1; other values do not change."""
    return max(1, round(count * factor)) if isinstance(count, int) and count > 0 else count
