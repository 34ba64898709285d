"""Which data of a run is missing on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedwild.data.sources import DATASETS, find_prepared
from fedwild.data.sources.builtin import is_synthetic


def missing_data(settings: Mapping[str, Any]) -> str | None:
    """Return a text that names the missing data; None if all data is available."""
    data = settings.get("data", {})
    name = data.get("name", "digits")
    newcomers = [newcomer["name"] for newcomer in data.get("newcomers", {}).values()]
    names = dict.fromkeys([*([name] if isinstance(name, str) else name), *newcomers])
    reasons = [reason for name in names if (reason := _why_missing(name))]
    return "; ".join(f"data: {reason}" for reason in reasons) or None


def is_missing(name: str) -> bool:
    """Return whether a data set is missing on this machine."""
    return _why_missing(name) is not None


def _why_missing(name: str) -> str | None:
    if name == "digits" or is_synthetic(name):
        return None
    if name not in DATASETS:
        return f"{name} is not a data set of fedwild"
    if find_prepared(name) is not None:
        return None
    way = f"fedwild data prepare {name}" if DATASETS[name].downloads else "no automatic download"
    return f"{name} is not on this machine ({way})"
