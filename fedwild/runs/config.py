"""The settings of a run: layers of TOML and flags in, one validated `Config` out, with all errors at once."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fedwild.contract import Method
from fedwild.core.defaults import DEFAULT_METHOD
from fedwild.core.errors import UserError
from fedwild.core.layers import Table, merge
from fedwild.core.settings import unknown_key, validate
from fedwild.core.text import cut
from fedwild.core.toml import dump_toml, parse_toml
from fedwild.data import DataSettings, PartitionSettings
from fedwild.data.partitions import POOL, PoolPartitionSettings, partition_settings, pool_partition_settings
from fedwild.methods import METHODS, demonstration
from fedwild.models import MODELS
from fedwild.openset import FitScore, check_decision
from fedwild.runs.components import KINDS, Part, default_parts, read_part, starting_methods
from fedwild.runs.privacy import check_method
from fedwild.runs.protection import check_protection
from fedwild.runs.settings import EngineSettings, EvaluationSettings, FederationSettings, PrivacySettings

SECTIONS = ("data", "partition", POOL, "federation", "model", "method", *KINDS, "privacy", "evaluation", "engine")
NAMED = ("partition", POOL, "model", "method", *KINDS)
"""The sections that describe a component by name."""


@dataclass(frozen=True)
class Config:
    """Everything a run depends on."""

    seed: int
    data: DataSettings
    partition: PartitionSettings
    pool_partition: PoolPartitionSettings
    federation: FederationSettings
    model: Part | None
    method: Part
    parts: dict[str, Part]
    privacy: PrivacySettings
    evaluation: EvaluationSettings
    engine: EngineSettings

    def table(self) -> Table:
        """Return nested plain values; `resolve(config.table())` gives the config again."""
        return {
            "seed": self.seed,
            "data": self.data.model_dump(),
            "partition": self.partition.model_dump(),
            **({POOL: self.pool_partition.model_dump()} if self.pool_partition.name else {}),
            "federation": self.federation.model_dump(),
            **({"model": self.model.table()} if self.model else {}),
            "method": self.method.table(),
            **{kind: part.table() for kind, part in self.parts.items()},
            "privacy": self.privacy.model_dump(),
            "evaluation": self.evaluation.model_dump(),
            "engine": self.engine.model_dump(),
        }

    def to_toml(self) -> str:
        return dump_toml(self.table())

    def decisive(self) -> Table:
        """Return the settings that results depend on: all but the engine."""
        table = self.table()
        del table["engine"]
        return table

    def digest(self) -> str:
        """Return a short digest of the settings that results depend on, without the seed."""
        table = {key: value for key, value in self.decisive().items() if key != "seed"}
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:10]

    def resolved(self, model: str, data: Table, partition: Table, federation: Table, privacy: Table) -> Config:
        """Return the config with everything filled in that the user left open and the data decided."""
        return replace(
            self,
            model=self.model or Part(model, validate(MODELS.get(model).Params, {}, "model")),
            data=validate(DataSettings, {**self.data.model_dump(), **data}, "data"),
            partition=validate(PartitionSettings, partition, "partition"),
            federation=self.federation.model_copy(update=federation),
            privacy=self.privacy.model_copy(update=privacy),
        )

    def with_engine(self, **changes: Any) -> Config:
        """Return the config with other settings of the engine; None leaves a setting as it is."""
        given = {key: value for key, value in changes.items() if value is not None}
        engine = validate(EngineSettings, {**self.engine.model_dump(), **given}, "engine")
        return replace(self, engine=engine)

    def make_method(self) -> Method:
        """Return the method with its components, checked as far as that needs no network."""
        parts = {kind: KINDS[kind][0].get(part.name)(part.params) for kind, part in self.parts.items()}
        method = METHODS.get(self.method.name)(self.method.params, **parts)
        score = parts.get("score")
        if score is not None and score.needs_unknown and not has_unknown_output(method):
            raise UserError(
                f"score.name = {score.name!r} is not allowed here: the network that answers has no unknown output. "
                "Set objective.name = proser or outlier-aware to train one (a distilled student never has one)."
            )
        if score is not None and score.needs_fit and not any(isinstance(p, FitScore) for p in method.phases()):
            raise UserError(
                f"score.name = {score.name!r} is not allowed here: it needs a fit step, which method {method.name!r} "
                "does not have."
            )
        check_decision(self.method.params, score, has_unknown_output(method))
        method.check(None, self.federation.start_from)
        check_method(method, self.privacy.level)
        check_protection(method, self.federation, self.privacy.level)
        return method


def has_unknown_output(method: Method) -> bool:
    """Return whether the network that answers has an output for "unknown"."""
    if method.traits.unknown_output is not None:
        return method.traits.unknown_output
    return "objective" in method.parts and method.objective.extra_outputs == 1  # type: ignore[attr-defined]


def resolve(*layers: Mapping[str, Any]) -> Config:
    """Return the config that layers of tables give; later layers override. One error reports all problems."""
    table = merge(*layers, named=NAMED)
    wrong: list[str] = []

    def attempt(build: Callable[[], Any]) -> Any:
        try:
            return build()
        except UserError as error:
            wrong.extend(error.problems)
            return None

    allowed = (*SECTIONS, "seed")
    if "sweep" in table:
        wrong.append("[sweep] is not allowed here: run it with `fedwild sweep CONFIG.toml`.")
    wrong += [unknown_key(key, key, allowed) for key in table if key not in (*allowed, "sweep")]
    for section in SECTIONS:
        if not isinstance(table.get(section, {}), dict):
            wrong.append(f"{section} = {table[section]!r} is not allowed: it must be a table, such as [{section}].")
            table[section] = {}
    method: type[Method] | None = attempt(partial(_method_class, table.get("method", {})))
    if method is not None:
        wrong += _foreign_parts(table, method) + _start_without_use(table, method)
        table = merge(_demonstration(method, table), method.parts, table, named=NAMED)

    seed = table.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        wrong.append(f"seed = {seed!r} is not allowed: it must be a whole number from 0 to 2**63 - 1.")
    config = Config(
        seed=seed,
        data=attempt(lambda: validate(DataSettings, table.get("data", {}), "data")),
        partition=attempt(lambda: partition_settings(table.get("partition", {}))),
        pool_partition=attempt(lambda: pool_partition_settings(table.get(POOL, {}))),
        federation=attempt(lambda: validate(FederationSettings, table.get("federation", {}), "federation")),
        model=attempt(lambda: read_part(MODELS, table.get("model", {}), None)),
        method=attempt(lambda: read_part(METHODS, table.get("method", {}), DEFAULT_METHOD) if method else None),
        parts={
            kind: attempt(partial(read_part, KINDS[kind][0], table.get(kind, {}), default))
            for kind, default in (default_parts(method) if method else {}).items()
        },
        privacy=attempt(lambda: validate(PrivacySettings, table.get("privacy", {}), "privacy")),
        evaluation=attempt(lambda: validate(EvaluationSettings, table.get("evaluation", {}), "evaluation")),
        engine=attempt(lambda: validate(EngineSettings, table.get("engine", {}), "engine")),
    )
    if wrong:
        raise UserError(*dict.fromkeys(wrong))
    return config


def _method_class(table: Table) -> type[Method]:
    name = table.get("name", DEFAULT_METHOD)
    if not isinstance(name, str):
        raise UserError(f"method.name = {name!r} is not allowed: it must be text.")
    return METHODS.get(name)


def _demonstration(method: type[Method], table: Table) -> Table:
    """Return what suits the embedded digits; its newcomers only if the user names none."""
    if table.get("data", {}).get("name", "digits") != "digits":
        return {}
    settings = demonstration(method)
    if "newcomers" in table.get("data", {}):
        settings.get("data", {}).pop("newcomers", None)
    return settings


def _foreign_parts(table: Table, method: type[Method]) -> list[str]:
    """Return errors for sections of components that the method does not have."""
    return [
        f"[{kind}] is given, but method {method.name!r} has no exchangeable {kind}: it composes "
        f"{', '.join(method.parts) or 'nothing'}."
        for kind in KINDS
        if kind in table and kind not in method.parts
    ]


def _start_without_use(table: Table, method: type[Method]) -> list[str]:
    """Return an error for a run to start from that the method would ignore."""
    path = table.get("federation", {}).get("start_from")
    if path is None or method.traits.starts_from:
        return []
    return [
        f"federation.start_from = {path!r} is not allowed: method {method.name!r} cannot begin with another run's "
        f"model. These can: {', '.join(starting_methods())}."
    ]


def changes(old: Table, new: Table) -> list[str]:
    """Return the differences between two configs' tables, a phrase per key."""
    before, after = _flat(old), _flat(new)
    return [
        f"{key} was {before.get(key)!r} and is {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _flat(table: Table) -> Table:
    flat: Table = {}
    for key, value in table.items():
        flat.update({f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value})
    return flat


def parse_setting(text: str) -> Table:
    """Return `method.lr=0.1` as a table; the value is TOML, or text if it is not valid TOML."""
    path, equals, raw = text.partition("=")
    if not equals or not all(_keys(path)):
        raise UserError(f"--set {text!r} is not allowed: write section.key=value, such as method.lr=0.1.")
    try:
        parsed = parse_toml(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        parsed = {"value": raw.strip()}
    except ValueError as error:
        raise UserError(f"--set {cut(text, 100)!r} is not allowed: {error}.") from None
    if len(parsed) > 1:
        raise UserError(f"--set {text!r} is not allowed: it must be a single setting.")
    return nested(path, parsed["value"])


def nested(path: str, value: Any) -> Table:
    """Return a dotted key such as `method.lr` and its value as tables."""
    for key in reversed(_keys(path)):
        value = {key: value}
    return dict(value)


def _keys(path: str) -> list[str]:
    keys = path.strip().split(".", 2)
    if keys[:2] == ["data", "newcomers"] and "." in keys[-1]:
        # A client's name may have points; a setting's name has none.
        keys[2:] = keys[2].rsplit(".", 1)
    return keys


def setting_layers(settings: Sequence[str] | Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return settings as layers for `resolve`: tables as they are, or parsed `section.key=value` texts."""
    if isinstance(settings, Mapping):
        return [settings]
    return [parse_setting(text) for text in ([settings] if isinstance(settings, str) else settings)]
