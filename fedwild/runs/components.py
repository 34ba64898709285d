"""The kinds of exchangeable components that a config can name, and the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedwild.aggregation import AGGREGATIONS
from fedwild.contract import Method
from fedwild.core.errors import UserError
from fedwild.core.layers import Table
from fedwild.core.registry import Registry
from fedwild.core.settings import Settings, validate
from fedwild.discovery import ESTIMATORS
from fedwild.methods import METHODS
from fedwild.openset import SCORES
from fedwild.training.corrections import CORRECTIONS
from fedwild.training.objectives import OBJECTIVES

KINDS: dict[str, tuple[Registry[Any], str]] = {
    "objective": (OBJECTIVES, "ce"),
    "correction": (CORRECTIONS, "none"),
    "aggregation": (AGGREGATIONS, "mean"),
    "estimator": (ESTIMATORS, "committee"),
    "score": (SCORES, "msp"),
}
"""The registry of each kind of component, and the name of its default."""


@dataclass(frozen=True)
class Part:
    """A named component with its settings."""

    name: str
    params: Settings

    def table(self) -> Table:
        return {"name": self.name, **self.params.model_dump()}


def default_parts(method: type[Method]) -> dict[str, str]:
    """Return the names of the components that a method has when the user names none."""
    return {kind: settings.get("name", KINDS[kind][1]) for kind, settings in method.parts.items()}


def read_part(registry: Registry[Any], table: Mapping[str, Any], default: str | None) -> Part | None:
    """Return the component that a section names, its settings validated by the component's own; None without name."""
    section = registry.kind
    name = table.get("name", default)
    rest = {key: value for key, value in table.items() if key != "name"}
    if name is None:
        if rest:
            raise UserError(f"{section}.name is missing: {', '.join(rest)} set without naming the {section}.")
        return None
    if not isinstance(name, str):
        raise UserError(f"{section}.name = {name!r} is not allowed: it must be text.")
    return Part(name, validate(registry.get(name).Params, rest, section))


def starting_methods(personal: bool = True) -> list[str]:
    """Return the methods that can begin with another run's model, on request only those with one global model."""
    traits = {name: METHODS.get(name).traits for name in METHODS.names()}
    return [name for name, about in traits.items() if about.starts_from and (personal or not about.personal)]
