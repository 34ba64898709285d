"""The registry of methods, its presets and its demonstration settings."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from fedwild.contract import Method
from fedwild.core.registry import Registry
from fedwild.core.settings import with_defaults

METHODS: Registry[Method] = Registry("method", Method)


def add_presets() -> None:
    """Register the named variants of `presets.toml`, such as `gal-paper`: a method with other defaults."""
    for name, preset in data_file("presets.toml").items():
        base = METHODS.get(preset["base"])
        fields = {"__doc__": preset["summary"], "__module__": __name__}
        fields["parts"] = {**base.parts, **preset.get("parts", {})}
        fields["Params"] = with_defaults(base.Params, preset.get("params", {}))
        METHODS.add(name)(type(base.__name__, (base,), fields))


def demonstration(method: type[Method]) -> dict[str, Any]:
    """Return the settings, by section, that suit the embedded digits when the user sets none."""
    table = data_file("digits.toml")
    names = (getattr(kind, "name", "") for kind in method.__mro__)
    return copy.deepcopy(next((table[name] for name in names if name in table), {}))


@cache
def data_file(name: str) -> Mapping[str, Any]:
    """Return a TOML file of this package."""
    return tomllib.loads((resources.files(__package__ or "") / name).read_text())
