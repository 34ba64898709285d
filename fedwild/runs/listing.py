"""What a config can name, with summaries and settings: the content of `fedwild list`."""

from __future__ import annotations

from typing import Any

from fedwild.core.component import Component, summary_of
from fedwild.core.errors import unknown_name
from fedwild.core.registry import Registry
from fedwild.core.settings import Settings
from fedwild.data import DATASETS, PARTITIONS, DataEntry, DataSettings, PartitionSettings
from fedwild.data.partitions import POOL, PoolPartitionSettings
from fedwild.data.sources import difference_from_catalogue, find_prepared
from fedwild.methods import METHODS, demonstration
from fedwild.models import MODELS
from fedwild.runs.components import KINDS as COMPONENTS
from fedwild.runs.components import default_parts
from fedwild.runs.settings import EngineSettings, EvaluationSettings, FederationSettings, PrivacySettings
from fedwild.training.loop import LocalTraining

Row = dict[str, Any]
"""name, summary, details (further lines for people) and parameters, each with name, type, default and so on."""

REGISTRIES: dict[str, Registry[Any]] = {
    "methods": METHODS,
    "models": MODELS,
    "partitions": PARTITIONS,
    **{f"{kind}s": registry for kind, (registry, _) in COMPONENTS.items()},
}
SECTIONS: dict[str, type[Settings]] = {
    "data": DataSettings,
    "partition": PartitionSettings,
    POOL: PoolPartitionSettings,
    "federation": FederationSettings,
    "privacy": PrivacySettings,
    "evaluation": EvaluationSettings,
    "engine": EngineSettings,
}
KINDS = ("methods", "data", *list(REGISTRIES)[1:], "settings")


def list_kind(kind: str, name: str | None = None) -> list[Row]:
    """Return a row for each thing of a kind, or only for the one called `name`."""
    if kind not in KINDS:
        raise unknown_name("list", kind, KINDS)
    if kind in REGISTRIES:
        registry = REGISTRIES[kind]
        return [_component_row(registry.get(one)) for one in ([name] if name else registry.names())]
    what, table = ("data set", DATASETS) if kind == "data" else ("section", SECTIONS)
    if name is not None and name not in table:
        raise unknown_name(what, name, table)
    return [_data_row(one) if kind == "data" else _row(one, SECTIONS[one]) for one in ([name] if name else table)]


def _component_row(cls: type[Component]) -> Row:
    row = {**_row(cls.name, cls.Params), "summary": summary_of(cls)}
    if issubclass(cls, METHODS.base):
        return {**row, **_method_facts(cls)}
    return row


def _row(name: str, settings: type[Settings]) -> Row:
    return {"name": name, "summary": summary_of(settings), "details": [], "parameters": settings.describe()}


def _method_facts(cls: Any) -> Row:
    """Return what a method composes, its settings for the digits, and which of its settings most methods share."""
    parts, digits = default_parts(cls), demonstration(cls)
    composed = ", ".join(f"{kind} ({default})" for kind, default in parts.items())
    details = [f"Components, with defaults: {composed or 'none'}."]
    if digits:
        settings = (f"{section}.{key}={value}" for section, table in digits.items() for key, value in table.items())
        details.append(f"Defaults for the digits: {', '.join(settings)}.")
    parameters = [
        {**parameter, "shared": parameter["name"] in LocalTraining.model_fields} for parameter in cls.Params.describe()
    ]
    return {"details": details, "parameters": parameters, "composes": list(parts), "digits": digits}


def _data_row(name: str) -> Row:
    """Return what a data set is, its size and licence, and whether this machine has it."""
    entry: DataEntry = DATASETS[name]
    found = "scikit-learn" if name == "digits" else find_prepared(name)
    missing = "it is downloaded when it is first used" if entry.downloads else "it has no official download"
    if entry.is_generated:
        missing = "it is drawn when it is first used"
    shape = "x".join(str(side) for side in entry.shape)
    where = f"Found in {found}." if found else f"Not found: {missing}."
    partial = difference_from_catalogue(name)
    return {
        "name": name,
        "summary": f"{entry.summary} ({shape}, {entry.class_count} classes, {entry.train} + {entry.test} samples)",
        "details": [f"Licence: {entry.licence}.", where, *([f"Not complete: {partial}."] if partial else [])],
        "parameters": [],
        "shape": list(entry.shape),
        "classes": entry.class_count,
        "train": entry.train,
        "test": entry.test,
        "licence": entry.licence,
        "found": str(found) if found else None,
    }
