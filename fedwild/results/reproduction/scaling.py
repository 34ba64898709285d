"""A paper's run made shorter: fewer rounds, and where there is but one, fewer epochs."""

from __future__ import annotations

from typing import Any

from fedwild.runs.config import Config, resolve


def scaled(config: Config, scale: float) -> Config:
    """The config with rounds multiplied by `scale`, at least one each.

    What rounds cannot give, because there is one or the method has none, is taken from the epochs of each round. Rounds
    in which clients arrive move with the rounds. Data, network and step sizes stay.
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
    """So many times as many, at least one; what is none of ours, or zero, stays."""
    return max(1, round(count * factor)) if isinstance(count, int) and count > 0 else count
