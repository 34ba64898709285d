"""Shortening a paper's run: fewer rounds or, if there is only one, fewer epochs."""

from __future__ import annotations

from typing import Any

from fedwild.runs.config import Config, resolve


def scaled(config: Config, scale: float) -> Config:
    """Return the config with all numbers of rounds multiplied by `scale`, at least one each.

    If a single round remains, the rest of the reduction applies to its epochs. The rounds in which clients arrive
    scale as well. Data, network and step sizes do not change.
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
    return resolve(table)


def _times(count: Any, factor: float) -> Any:
    """Return a positive number multiplied by the factor, at least 1; other values do not change."""
    return max(1, round(count * factor)) if isinstance(count, int) and count > 0 else count
