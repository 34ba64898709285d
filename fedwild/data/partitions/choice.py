"""Choosing a partition: short forms such as `dirichlet:0.1`, settings, and the default for a data set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field

from fedwild.core.errors import UserError, suggest, unknown_name
from fedwild.core.settings import Settings, unknown_key, validate
from fedwild.data.dataset import Dataset
from fedwild.data.partitions.base import PARTITIONS, Partition

POOL = "pool_partition"
_ABBREVIATIONS = (
    (re.compile(r"#?c=?(\d+)", re.IGNORECASE), "classes"),
    (re.compile(r"dir(?:ichlet)?=?(\d*\.?\d+)", re.IGNORECASE), "dirichlet"),
)


class PartitionSettings(Settings):
    """How training samples are divided among clients. The other settings depend on the partition."""

    model_config = ConfigDict(extra="allow")

    name: str | None = Field(
        None,
        description="See `fedwild list partitions`; also dirichlet:0.1, #C=2 or package.module:Class. "
        "Default: owner or domain if the data has several, else dirichlet.",
    )

    @property
    def params(self) -> dict[str, Any]:
        """The settings that were given, without the name."""
        return {key: value for key, value in (self.model_extra or {}).items() if value is not None}


class PoolPartitionSettings(PartitionSettings):
    """How samples of novel classes are divided among clients. The other settings depend on the partition."""

    name: str | None = Field(
        None, description="See `fedwild list partitions`; also short forms. Default: that of the labelled samples."
    )


def partition_settings(table: Mapping[str, Any]) -> PartitionSettings:
    """Return the validated settings of a [partition] section, with short forms spelt out."""
    given = validate(PartitionSettings, table, "partition")
    if given.name is None:
        # The data chooses the partition; only a key that no partition has is certainly wrong.
        known = {key for name in PARTITIONS.names() for key in PARTITIONS.get(name).Params.model_fields}
        wrong = [unknown_key(f"partition.{key}", key, known) for key in given.params if key not in known]
        if wrong:
            raise UserError(*wrong)
        return given
    name, params = spelt_out(given)
    make_partition(name, params)
    return PartitionSettings(name=name, **params)


def pool_partition_settings(table: Mapping[str, Any]) -> PoolPartitionSettings:
    """Return the validated settings of a [pool_partition] section, complete and with short forms spelt out."""
    given = validate(PoolPartitionSettings, table, POOL)
    if given.name is None:
        if given.params:
            keys = ", ".join(given.params)
            raise UserError(f"{POOL}.name is missing: {keys} set without naming the partition.")
        return given
    name, params = spelt_out(given)
    return PoolPartitionSettings(name=name, **make_partition(name, params, POOL).params.model_dump())


def spelt_out(given: PartitionSettings) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of a partition that has a name."""
    assert given.name is not None
    name, params = parse_partition(given.name)
    return name, params | given.params


def choose_partition(dataset: Dataset, text: str | None, params: Mapping[str, Any]) -> Partition:
    """Return the partition that `text` names, or the default of the data set, with these settings."""
    name, parsed = parse_partition(text) if text else (default_partition(dataset), {})
    return make_partition(name, {**parsed, **params})


def make_partition(name: str, params: Mapping[str, Any], section: str = "partition") -> Partition:
    """Return a partition with validated settings; settings of other partitions are rejected."""
    allowed = PARTITIONS.get(name).Params.model_fields
    wrong = [
        f"{section}.{key} = {value!r} is not a setting of partition {name!r}.{suggest(key, allowed)} "
        f"Allowed here: {', '.join(allowed) or 'nothing'}."
        for key, value in params.items()
        if key not in allowed
    ]
    if wrong:
        raise UserError(*wrong)
    cls = PARTITIONS.get(name)
    return cls(validate(cls.Params, params, section))


def parse_partition(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and settings in 'dirichlet', 'dirichlet:0.1', 'dir0.5', '#C=2', 'c2' or an import path."""
    text = text.strip()
    for pattern, name in _ABBREVIATIONS:
        match = pattern.fullmatch(text)
        if match:
            return name, {PARTITIONS.get(name).short_setting: _number(match[1])}
    name, colon, value = text.partition(":")
    if name not in PARTITIONS.names():
        if value[:1].isidentifier():
            return text, {}
        raise unknown_name("partition", text, PARTITIONS.names())
    if not colon:
        return name, {}
    key = PARTITIONS.get(name).short_setting
    if not key:
        raise UserError(f"partition.name = {text!r} is not allowed: {name!r} takes no number.")
    try:
        return name, {key: _number(value)}
    except ValueError:
        raise UserError(
            f"partition.name = {text!r} is not allowed: {value!r} is not a number (write for example {name}:1)."
        ) from None


def default_partition(dataset: Dataset) -> str:
    """Return 'owner' if the data names owners, 'domain' if it has several domains, else 'dirichlet'."""
    if dataset.owners:
        return "owner"
    return "domain" if len(dataset.domains) > 1 else "dirichlet"


def _number(text: str) -> int | float:
    return int(text) if text.strip().isdigit() else float(text)
