"""Typed, documented, immutable settings: the command line, the docs and validation come from these."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from fedwild.errors import UserError


class Hyper(BaseModel):
    """Settings of one part. Unknown keys are errors; every field carries a description."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python takes true for 1; a person who writes it for a number has made a mistake."""
        field = cls.model_fields.get(info.field_name or "")
        if isinstance(value, bool) and field is not None and "bool" not in str(field.annotation):
            raise ValueError("true or false is not a value for this")
        return value

    @classmethod
    def described(cls) -> list[dict[str, Any]]:
        """One row per setting: name, type, default, allowed, description."""
        properties = cls.model_json_schema().get("properties", {})
        return [
            {
                "name": name,
                "type": _type_name(properties[name]),
                "default": None if field.is_required() else field.get_default(call_default_factory=True),
                "allowed": _limits(properties[name]),
                "description": field.description or "",
            }
            for name, field in cls.model_fields.items()
        ]


H = TypeVar("H", bound=Hyper)


def with_default(settings: type[Hyper], name: str, default: Any) -> Any:
    """A setting as in other settings, limits and description included, with another default."""
    return FieldInfo.merge_field_infos(settings.model_fields[name], default=default)


def validated(settings: type[H], values: Mapping[str, Any], section: str) -> H:
    """The settings that `values` give. All that is wrong with them becomes one `UserError`, a sentence each."""
    try:
        return settings.model_validate(dict(values))
    except ValidationError as error:
        raise UserError(*problems(error, settings, values, section)) from None


def problems(error: ValidationError, settings: type[Hyper], values: Mapping[str, Any], section: str) -> list[str]:
    """A sentence per key: its name, its value and what is allowed."""
    allowed = {row["name"]: row for row in settings.described()}
    sentences: dict[str, str] = {}
    for detail in error.errors():
        key = str(detail["loc"][0]) if detail["loc"] else ""
        path = f"{section}.{key}" if section and key else section or key
        nested = ".".join([section, *map(str, detail["loc"])])
        entry = entry_settings(settings, key)
        if entry is not None and len(detail["loc"]) > 1:
            name = str(detail["loc"][1])
            sentences |= {text: text for text in entry_problems(entry, values[key][name], f"{path}.{name}")}
        elif detail["type"] == "extra_forbidden" and len(detail["loc"]) > 1:
            sentences[nested] = f"{nested} is not a setting."
        elif detail["type"] == "missing" and len(detail["loc"]) > 1:
            sentences[nested] = f"{nested} is missing."
        elif detail["type"] == "extra_forbidden":
            sentences[path] = unknown_key(path, key, allowed)
        elif key not in allowed:
            sentences[path] = f"{path}: {_plain(detail['msg'])}."
        else:
            row = allowed[key]
            wanted = ", ".join(filter(None, (row["type"], row["allowed"])))
            said = f"{path} = {values.get(key)!r}"
            sentences.setdefault(path, f"{said} is not allowed: {_plain(detail['msg'])} ({wanted}).")
    return list(sentences.values())


def entry_settings(settings: type[Hyper], key: str) -> type[Hyper] | None:
    """The settings of each entry where a setting is a table of them, such as data.newcomers."""
    field = settings.model_fields.get(key)
    kind = get_args(field.annotation)[-1] if field and get_origin(field.annotation) is dict else None
    return kind if isinstance(kind, type) and issubclass(kind, Hyper) else None


def entry_problems(settings: type[Hyper], values: Any, section: str) -> tuple[str, ...]:
    """What is wrong with one entry of a table of settings."""
    if not isinstance(values, Mapping):
        return (f"{section} = {values!r} is not allowed: it must be a table with {', '.join(settings.model_fields)}.",)
    try:
        validated(settings, values, section)
    except UserError as error:
        return error.problems
    return ()


def unknown_key(path: str, key: str, allowed: Iterable[str]) -> str:
    """The sentence for a misspelt key."""
    names = sorted(allowed)
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{path} is not a setting.{hint} Allowed here: {', '.join(names) or 'nothing'}."


def _plain(message: str) -> str:
    """Pydantic's message without its prefix, as the rest of a sentence."""
    message = message.removeprefix("Value error, ").rstrip(".")
    return message[:1].lower() + message[1:]


_WORDS = {
    "integer": "whole number",
    "array": "list",
    "object": "table",
    "string": "text",
    "boolean": "true or false",
}
_SIGNS = {"minimum": ">=", "maximum": "<=", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}


def _type_name(schema: Mapping[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return "choice"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type_name(s) for s in schema["anyOf"] if s.get("type") != "null"))
    kind = str(schema.get("type", "any"))
    return _WORDS.get(kind, kind)


def _limits(schema: Mapping[str, Any]) -> str:
    """The limits in words: '>= 0, < 1', 'sgd | adam'."""
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(filter(None, (_limits(s) for s in schema["anyOf"])))
    return ", ".join(f"{_SIGNS[key]} {value:g}" for key, value in schema.items() if key in _SIGNS)
