"""What runs where a paper's data is not at hand: the other domains if there are some, else the embedded digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedwild.data.sources import DATASETS
from fedwild.results.papers.missing import is_missing

DIGITS = "digits"
CLASSES = DATASETS[DIGITS].classes
# What belongs to the data set that is not there.
OF_THE_DATA = ("size", "channels", "mean", "std", "augment", "train_samples", "test_samples", "domains", "stages")


def stood_in(settings: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The settings with data that is here, and what was changed in words; None if nothing had to be."""
    data = settings.get("data", {})
    names = [data["name"]] if isinstance(data.get("name", DIGITS), str) else data["name"]
    newcomers = [newcomer["name"] for newcomer in data.get("newcomers", {}).values()]
    missing = [name for name in names if is_missing(name)]
    if not missing and not any(map(is_missing, newcomers)):
        return dict(settings), None
    here = [name for name in names if name not in missing]
    if here and len(names) > 1 and not any(map(is_missing, newcomers)):
        return {**settings, "data": {**data, "name": here}}, f"without {', '.join(missing)}"
    return _on_digits(settings, names), f"digits for {', '.join(dict.fromkeys([*names, *newcomers]))}"


def _on_digits(settings: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Digits in the place of all data sets, with the same shares of known and novel classes, and a network for them."""
    data = {key: value for key, value in settings["data"].items() if key not in OF_THE_DATA}
    counts = {key: _as_digits(data[key], _class_count(names[0], data)) for key in ("known", "novel") if key in data}
    data |= {"name": DIGITS, **counts}
    if "known" not in data:
        data["known"] = "all"
    if "novel" in data and settings["data"].get("stages"):
        data["stages"] = _shared_out(data["novel"], len(settings["data"]["stages"]))
    if "newcomers" in data:
        data["newcomers"] = {name: _newcomer(said) for name, said in data["newcomers"].items()}
    changed: dict[str, Any] = {**settings, "data": data}
    # A small network, as suits small pictures.
    changed.pop("model", None)
    if len(names) > 1:
        changed["partition"] = {"name": "iid"}
        changed["federation"] = {**settings.get("federation", {}), "clients": len(names)}
    if "classes" in settings.get("estimator", {}) and isinstance(data.get("novel"), int):
        changed["estimator"] = {**settings["estimator"], "classes": data["novel"]}
    return changed


def _class_count(name: str, data: Mapping[str, Any]) -> int:
    """How many classes a data set has; of one that fedwild does not know, those that the settings tell of."""
    if name in DATASETS:
        return DATASETS[name].class_count
    told = sum(count for key in ("known", "novel", "unknown") if isinstance(count := data.get(key), int))
    return max(told, len(CLASSES))


def _as_digits(classes: Any, of: int) -> Any:
    """A number of classes as the same share of ten; names of digits stay, other names become their number."""
    if isinstance(classes, list):
        return classes if {str(name) for name in classes} <= set(CLASSES) else _as_digits(len(classes), of)
    if not isinstance(classes, int) or classes == 0:
        return classes
    return min(len(CLASSES), max(1, round(classes * len(CLASSES) / of)))


def _newcomer(said: Mapping[str, Any]) -> dict[str, Any]:
    classes = said.get("classes")
    kept = {"classes": classes} if classes and {str(name) for name in classes} <= set(CLASSES) else {}
    return {"name": DIGITS, **kept}


def _shared_out(count: int, parts: int) -> list[int]:
    """As equal as can be, each at least one."""
    return [max(1, (count + part) // parts) for part in range(parts)]
