"""What can be named, for people and for scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedwild.contract import Method
from fedwild.core.registry import Registry
from fedwild.core.settings import Settings
from fedwild.data import DATASETS, PARTITIONS, DataEntry, DataSettings, PartitionSettings
from fedwild.data.sources import find_prepared
from fedwild.discovery import ESTIMATORS
from fedwild.methods import METHODS
from fedwild.models import MODELS
from fedwild.openset import SCORES
from fedwild.runs.components import default_parts
from fedwild.runs.settings import EngineSettings, EvaluationSettings, FederationSettings
from fedwild.training.corrections import CORRECTIONS
from fedwild.training.objectives import OBJECTIVES

Row = dict[str, Any]


def _row(name: str, summary: str, parameters: list[Row]) -> Row:
    return {"name": name, "summary": summary, "parameters": parameters}


def _registered(registry: Registry[Any]) -> list[Row]:
    classes = [registry.get(name) for name in registry.names()]
    return [_row(cls.name, cls.summary(), cls.Params.described()) for cls in classes]


def _methods() -> list[Row]:
    return [_method_row(row, METHODS.get(row["name"])) for row in _registered(METHODS)]


def _method_row(row: Row, method: type[Method]) -> Row:
    """A method's row, with what it composes and what it sets for the embedded digits."""
    preset = ", ".join(f"{key}={value}" for key, value in method.digits.get("method", {}).items())
    parts = ", ".join(f"{kind} ({default})" for kind, default in default_parts(method).items())
    about = f"{row['summary']} Composes {parts or 'nothing'}."
    summary = f"{about} On the embedded digits: {preset}." if preset else about
    return {**row, "summary": summary, "composes": list(method.composes), "digits": method.digits}


def _data() -> list[Row]:
    return [_data_row(entry) for entry in DATASETS.values()]


def _data_row(entry: DataEntry) -> Row:
    """What a data set is, how large, under which licence, and whether this machine has it."""
    shape = "x".join(str(side) for side in entry.shape)
    found = "embedded" if entry.name == "digits" else find_prepared(entry.name)
    place = f"found: {found}" if found else "to be downloaded" if entry.downloads else "to be put in place by hand"
    about = f"{shape}, {entry.class_count} classes, {entry.train} + {entry.test} samples; {entry.licence}; {place}"
    return {
        **_row(entry.name, f"{entry.summary} ({about})", []),
        "shape": list(entry.shape),
        "classes": entry.class_count,
        "train": entry.train,
        "test": entry.test,
        "licence": entry.licence,
        "found": str(found) if found else None,
    }


def _sections() -> list[Row]:
    """The sections of a config that are not parts with names of their own."""
    sections: dict[str, type[Settings]] = {
        "data": DataSettings,
        "partition": PartitionSettings,
        "federation": FederationSettings,
        "evaluation": EvaluationSettings,
        "engine": EngineSettings,
    }
    return [_row(name, (cls.__doc__ or "").splitlines()[0], cls.described()) for name, cls in sections.items()]


def _entries(table: dict[str, Any]) -> list[Row]:
    return [_row(entry.name, entry.summary, entry.Params.described()) for entry in table.values()]


LISTS: dict[str, Callable[[], list[Row]]] = {
    "methods": _methods,
    "data": _data,
    "models": lambda: _entries(MODELS),
    "partitions": lambda: _entries(PARTITIONS),
    "objectives": lambda: _registered(OBJECTIVES),
    "corrections": lambda: _registered(CORRECTIONS),
    "estimators": lambda: _registered(ESTIMATORS),
    "scores": lambda: _entries(SCORES),
    "settings": _sections,
}


def rows_of(kind: str) -> list[Row]:
    """The rows of one list."""
    return LISTS[kind]()
