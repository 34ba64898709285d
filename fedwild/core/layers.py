"""Layered settings: defaults, files and options as nested tables, merged into one."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from typing import Any

Table = dict[str, Any]


def merge(*layers: Mapping[str, Any], named: Collection[str] = ()) -> Table:
    """Return one table in which later layers override earlier ones, key by key, also within nested tables.

    The sections in `named` describe a part with a `name`. A layer that gives such a section another name replaces
    it: the settings of the old part do not apply to the new one. The result shares no values with the layers.
    """
    table: Table = {}
    for layer in layers:
        for key, value in layer.items():
            old = table.get(key)
            table[key] = _override(None if key in named and _has_other_name(old, value) else old, value)
    return table


def _has_other_name(old: Any, new: Any) -> bool:
    """Whether two tables name different parts; a table without a name continues the old one."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return False
    return None not in (old.get("name"), new.get("name")) and old["name"] != new["name"]


def _override(old: Any, new: Any) -> Any:
    if not isinstance(new, Mapping):
        return copy.deepcopy(new)
    before = old if isinstance(old, Mapping) else {}
    return {**before, **{key: _override(before.get(key), value) for key, value in new.items()}}
