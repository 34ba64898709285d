"""A run's settings: layers of TOML and flags in, one validated `Config` out, with all that is wrong at once."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from fedwild.corrections import CORRECTIONS
from fedwild.data import DataSettings, PartitionSettings, parse_partition
from fedwild.discovery import ESTIMATORS
from fedwild.errors import UserError, unknown_name
from fedwild.hyper import Hyper, unknown_key, validated
from fedwild.methods import METHODS
from fedwild.models import MODELS
from fedwild.objectives import OBJECTIVES
from fedwild.openset import SCORES, Score
from fedwild.protocol import Method

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Table = dict[str, Any]


class FederationSettings(Hyper):
    """Who takes part, and what they start from."""

    clients: int | None = Field(None, ge=1, description="number of clients (10, or as many as the data says)")
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in a round")
    min_clients: int = Field(1, ge=1, description="a round fails if fewer clients answer")
    arrivals: dict[str, Annotated[int, Field(ge=0, strict=True)] | Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict,
        description="client name = number of the round, or name of the phase, since which it is there",
    )
    start_from: str | None = Field(
        None, min_length=1, description="a finished run's folder, whose global model this run begins with"
    )


class EvaluationSettings(Hyper):
    """When and how the model is measured."""

    every: int = Field(1, ge=0, description="rounds between evaluations; 0 evaluates only at the end")
    accept: float = Field(0.95, gt=0, le=1, description="share of known validation samples that the threshold accepts")


class EngineSettings(Hyper):
    """Where clients run. A run may be resumed with another engine; the number of workers never changes its result."""

    name: Literal["local", "ray", "flower"] = Field(
        "local", description="local: processes on this machine; ray: a Ray cluster; flower: real sites (coordinate)"
    )
    workers: int | None = Field(None, ge=0, le=256, description="worker processes (one per core); 0 = in this process")
    device: str = Field("cpu", description="cpu, cuda, cuda:0 ...")
    max_reply_mb: float = Field(1024, gt=0, description="larger replies are refused")
    address: str | None = Field(
        None, min_length=1, description="ray: the cluster's address, such as auto; without it, one on this machine"
    )
    superlink: str | None = Field(
        None, min_length=1, description="flower: HOST:PORT of a SuperLink that runs on this machine already"
    )
    listen: str | None = Field(
        None, min_length=1, description="flower: HOST:PORT where sites find us, without superlink"
    )
    certificates: str | None = Field(
        None, min_length=1, description="flower: the folder that `fedwild flower keys` made; without it, no TLS"
    )
    wait: float = Field(
        600, gt=0, description="flower: seconds to wait for sites, at the beginning or if too few are there"
    )
    answer_within: float | None = Field(
        None, gt=0, description="flower: seconds a site has for a job; without it, as long as it is connected"
    )


@dataclass(frozen=True)
class Part:
    """A named part with its settings."""

    name: str
    params: Hyper

    def table(self) -> Table:
        return {"name": self.name, **self.params.model_dump()}


@dataclass(frozen=True)
class Config:
    """Everything a run depends on."""

    seed: int
    data: DataSettings
    partition: PartitionSettings
    federation: FederationSettings
    model: Part | None
    method: Part
    parts: dict[str, Part]
    evaluation: EvaluationSettings
    engine: EngineSettings

    def table(self) -> Table:
        """As nested plain values; `resolve(config.table())` gives the config again."""
        return {
            "seed": self.seed,
            "data": self.data.model_dump(),
            "partition": self.partition.model_dump(),
            "federation": self.federation.model_dump(),
            **({"model": self.model.table()} if self.model else {}),
            "method": self.method.table(),
            **{kind: part.table() for kind, part in self.parts.items()},
            "evaluation": self.evaluation.model_dump(),
            "engine": self.engine.model_dump(),
        }

    def to_toml(self) -> str:
        return dump_toml(self.table())

    def decisive(self) -> Table:
        """What results depend on: all but the engine."""
        table = self.table()
        del table["engine"]
        return table

    def digest(self) -> str:
        """A short name for all that results depend on but the seed, equal for equal settings."""
        table = {key: value for key, value in self.decisive().items() if key != "seed"}
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:10]

    def resolved(self, model: str, data: Table, partition: Table, federation: Table) -> Config:
        """The config with everything filled in that the user left open and the data decided."""
        return replace(
            self,
            model=self.model or Part(model, validated(model_params(model), {}, "model")),
            data=validated(DataSettings, {**self.data.model_dump(), **data}, "data"),
            partition=validated(PartitionSettings, partition, "partition"),
            federation=self.federation.model_copy(update=federation),
        )

    def with_engine(self, **changes: Any) -> Config:
        given = {key: value for key, value in changes.items() if value is not None}
        engine = validated(EngineSettings, {**self.engine.model_dump(), **given}, "engine")
        return replace(self, engine=engine)

    def make_method(self) -> Method:
        parts = {kind: PARTS[kind].make(part) for kind, part in self.parts.items()}
        method = METHODS.get(self.method.name)
        score = parts.get("score")
        if score is not None and score.entry.reads_unknown and not method.scores_unknown_output(parts):
            raise UserError(
                f"score.name = {score.name!r} is not allowed here: the network that answers has no unknown output; "
                "objective.name = proser or outlier-aware trains one (a distilled student never has one)."
            )
        return method(self.method.params, **parts)


@dataclass(frozen=True)
class PartKind:
    """How a kind of exchangeable part is looked up and made."""

    default: str
    params: Callable[[str], type[Hyper]]
    make: Callable[[Part], Any]


class AnyParams(Hyper):
    """Settings of the user's own network, which its own code checks."""

    model_config = ConfigDict(extra="allow", frozen=True)


def model_params(name: str) -> type[Hyper]:
    """The settings class of a network."""
    if ":" in name:
        return AnyParams
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name].Params


def _method_class(table: Table) -> type[Method]:
    name = table.get("name", "fedavg")
    if not isinstance(name, str):
        raise UserError(f"method.name = {name!r} is not allowed: it must be text.")
    return METHODS.get(name)


def _method_params(name: str) -> type[Hyper]:
    return METHODS.get(name).Params


def _score_params(name: str) -> type[Hyper]:
    if name not in SCORES:
        raise unknown_name("score", name, SCORES)
    return SCORES[name].Params


PARTS: dict[str, PartKind] = {
    "objective": PartKind(
        "ce", lambda name: OBJECTIVES.get(name).Params, lambda part: OBJECTIVES.get(part.name)(part.params)
    ),
    "correction": PartKind(
        "none",
        lambda name: CORRECTIONS.get(name).Params,
        lambda part: CORRECTIONS.get(part.name)(part.params),
    ),
    "estimator": PartKind(
        "committee", lambda name: ESTIMATORS.get(name).Params, lambda part: ESTIMATORS.get(part.name)(part.params)
    ),
    "score": PartKind("msp", _score_params, lambda part: Score(SCORES[part.name], part.params)),
}


def default_parts(method: type[Method] | None) -> dict[str, str]:
    """The parts that a method is composed of when the user names none."""
    if method is None:
        return {}
    return {kind: method.parts.get(kind, {}).get("name", PARTS[kind].default) for kind in method.composes}


SECTIONS = ("data", "partition", "federation", "model", "method", *PARTS, "evaluation", "engine")


def resolve(*layers: Mapping[str, Any]) -> Config:
    """The config that layers of tables give, later ones winning. Everything wrong is reported in one error."""
    table: Table = {}
    for layer in layers:
        _overlay(table, layer)
    wrong: list[str] = []

    def attempt(build: Callable[[], Any]) -> Any:
        try:
            return build()
        except UserError as error:
            wrong.extend(error.problems)
            return None

    wrong += [_unknown_section(key) for key in table if key not in (*SECTIONS, "seed")]
    for section in SECTIONS:
        if not isinstance(table.get(section, {}), dict):
            wrong.append(f"{section} = {table[section]!r} is not allowed: it must be a table, such as [{section}].")
            table[section] = {}
    method: type[Method] | None = attempt(partial(_method_class, table.get("method", {})))
    if method is not None and table.get("data", {}).get("name", "digits") == "digits":
        table = _overlay(_digits_preset(method, table), table)
    if method is not None:
        table = _overlay(_copy(method.parts), table)
    wrong += _foreign_parts(table, method)
    wrong += _start_in_vain(table, method)

    seed = table.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        wrong.append(f"seed = {seed!r} is not allowed: it must be a whole number from 0 to 2**63 - 1.")
    config = Config(
        seed=seed,
        data=attempt(lambda: validated(DataSettings, table.get("data", {}), "data")),
        partition=attempt(lambda: _partition(table.get("partition", {}))),
        federation=attempt(lambda: validated(FederationSettings, table.get("federation", {}), "federation")),
        model=attempt(lambda: _named("model", table.get("model", {}), None, model_params)),
        method=attempt(lambda: _named("method", table.get("method", {}), "fedavg", _method_params) if method else None),
        parts={
            kind: attempt(partial(_named, kind, table.get(kind, {}), default, PARTS[kind].params))
            for kind, default in default_parts(method).items()
        },
        evaluation=attempt(lambda: validated(EvaluationSettings, table.get("evaluation", {}), "evaluation")),
        engine=attempt(lambda: validated(EngineSettings, table.get("engine", {}), "engine")),
    )
    if wrong:
        raise UserError(*dict.fromkeys(wrong))
    return config


def _unknown_section(key: str) -> str:
    if key == "sweep":
        return "[sweep] is not allowed here: it is for `fedwild sweep CONFIG.toml`, which runs all that it varies."
    return unknown_key(key, key, (*SECTIONS, "seed"))


def _digits_preset(method: type[Method], table: Table) -> Table:
    """What suits the embedded digits; newcomers of its own only if the user says nothing of any."""
    preset = _copy(method.digits)
    if "newcomers" in table.get("data", {}):
        preset.get("data", {}).pop("newcomers", None)
    return preset


def _named(section: str, table: Table, default: str | None, params: Callable[[str], type[Hyper]]) -> Part | None:
    """The part a section names, its settings validated by the part's own."""
    name = table.get("name", default)
    rest = {key: value for key, value in table.items() if key != "name"}
    if name is None:
        if rest:
            raise UserError(f"{section}.name is missing: {', '.join(rest)} given without saying of which {section}.")
        return None
    if not isinstance(name, str):
        raise UserError(f"{section}.name = {name!r} is not allowed: it must be text.")
    return Part(name, validated(params(name), rest, section))


def _partition(table: Table) -> PartitionSettings:
    """The partition's settings; a short form such as 'dirichlet:0.1' is spelt out."""
    name = table.get("name")
    if isinstance(name, str):
        plain, params = parse_partition(name)
        table = {**params, **table, "name": plain}
    return validated(PartitionSettings, table, "partition")


def _foreign_parts(table: Table, method: type[Method] | None) -> list[str]:
    """Sections for parts that the method does not have."""
    if method is None:
        return []
    return [
        f"[{kind}] is given, but method {method.name!r} has no exchangeable {kind}: it composes "
        f"{', '.join(method.composes) or 'nothing'}."
        for kind in PARTS
        if kind in table and kind not in method.composes
    ]


def _start_in_vain(table: Table, method: type[Method] | None) -> list[str]:
    """A run to start from, given to a method that would not look at it."""
    path = table.get("federation", {}).get("start_from")
    if method is None or path is None:
        return []
    if table.get("method", {}).get("start") == "own":
        reason = "nobody would begin with its model"
        return [f"federation.start_from = {path!r} is not allowed with method.start = 'own': {reason}."]
    if method.starts_from:
        return []
    return [
        f"federation.start_from = {path!r} is not allowed: method {method.name!r} cannot begin with another run's "
        f"model. These can: {', '.join(starters())}."
    ]


def starters() -> list[str]:
    """The methods that can begin with another run's model."""
    return [name for name in METHODS.names() if METHODS.get(name).starts_from]


def sources() -> list[str]:
    """Those of them whose own runs end with one global model."""
    return [name for name in starters() if not METHODS.get(name).personal]


def _overlay(table: Table, layer: Mapping[str, Any]) -> Table:
    """Write `layer` over `table`, section by section. A named part that changes its name loses its old settings."""
    for key, value in layer.items():
        old = table.get(key)
        if isinstance(value, Mapping) and isinstance(old, dict):
            named = key in {*PARTS, "method", "model", "partition"}
            renamed = named and None not in (old.get("name"), value.get("name")) and old["name"] != value["name"]
            table[key] = dict(value) if renamed else {**old, **{k: _joined(old.get(k), v) for k, v in value.items()}}
        else:
            table[key] = dict(value) if isinstance(value, Mapping) else value
    return table


def _joined(old: Any, new: Any) -> Any:
    """Tables within a section, such as arrivals, add up, and so do tables within them."""
    if not isinstance(old, dict) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: _joined(old.get(key), value) for key, value in new.items()}}


def _copy(table: Mapping[str, Any]) -> Table:
    copied: Table = json.loads(json.dumps(table))
    return copied


def changes(old: Table, new: Table) -> list[str]:
    """What differs between two configs' tables, a phrase per key."""
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


def read_toml(path: Path) -> Table:
    """A config file's tables."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"config file {str(path)!r} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"config file {str(path)!r} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"config file {str(path)!r} is not TOML: {error}.") from None


def parse_setting(text: str) -> Table:
    """`method.lr=0.1` as a table; the value is TOML, or text if it is not."""
    path, equals, raw = text.partition("=")
    if not equals or not all(_keys(path)):
        raise UserError(f"--set {text!r} is not allowed: write section.key=value, such as method.lr=0.1.")
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        parsed = {"value": raw.strip()}
    if len(parsed) > 1:
        raise UserError(f"--set {text!r} is not allowed: it must be a single setting.")
    return nested(path, parsed["value"])


def nested(path: str, value: Any) -> Table:
    """`method.lr` and its value as tables."""
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
    """Settings as layers for `resolve`: tables as they are, or `section.key=value` texts."""
    if isinstance(settings, Mapping):
        return [settings]
    return [parse_setting(text) for text in ([settings] if isinstance(settings, str) else settings)]


def dump_toml(table: Mapping[str, Any]) -> str:
    """Plain tables as TOML; None is left out."""
    lines = [f"{key} = {toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for section, values in table.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]"]
            lines += [f"{_key(key)} = {toml_value(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else _quoted(key)


def _quoted(text: str) -> str:
    """TOML's basic strings are escaped as JSON's are, but for one control character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: Any) -> str:
    """A value as TOML, which `--set` reads."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{_quoted(str(k))} = {toml_value(v)}" for k, v in value.items() if v is not None) + " }"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return _quoted(value) if isinstance(value, str) else repr(value)
