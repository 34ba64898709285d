"""Typed, documented, immutable settings: the source of validation, the command line's lists and the docs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, create_model, field_validator
from pydantic.fields import FieldInfo

from fedwild.core.errors import UserError, suggest


class Settings(BaseModel):
    """The settings of one component or section. Unknown keys are errors; every field has a description."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _reject_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject true and false where a number is expected: Python would read them as 1 and 0."""
        field = cls.model_fields.get(info.field_name or "")
        if isinstance(value, bool) and field is not None and "bool" not in str(field.annotation):
            raise ValueError("true and false are not allowed here")
        return value

    @classmethod
    def describe(cls) -> list[dict[str, Any]]:
        """Return one row per setting: name, type, default, allowed values, description."""
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


S = TypeVar("S", bound=Settings)


def with_defaults(settings: type[S], defaults: Mapping[str, Any]) -> type[S]:
    """Return a settings class with other defaults; limits and descriptions stay."""
    fields: dict[str, Any] = {}
    for name, value in defaults.items():
        field = settings.model_fields[name]
        fields[name] = (field.annotation, FieldInfo.merge_field_infos(field, default=value))
    return create_model(settings.__name__, __base__=settings, __doc__=settings.__doc__, **fields)


def validate(settings: type[S], values: Mapping[str, Any], section: str) -> S:
    """Return the settings that `values` give. All problems are raised as one `UserError`, one sentence each."""
    try:
        return settings.model_validate(dict(values))
    except ValidationError as error:
        raise UserError(*_describe_problems(error, settings, values, section)) from None


def unknown_key(path: str, key: str, allowed: Iterable[str]) -> str:
    """Return the message for an unknown key, with the closest allowed key as a suggestion."""
    names = sorted(allowed)
    return f"{path} is not a setting.{suggest(key, names)} Allowed here: {', '.join(names) or 'nothing'}."


def _describe_problems(
    error: ValidationError, settings: type[Settings], values: Mapping[str, Any], section: str
) -> list[str]:
    """Return one sentence per key: its name, its value and what is allowed."""
    allowed = {row["name"]: row for row in settings.describe()}
    sentences: dict[str, str] = {}
    for detail in error.errors():
        key = str(detail["loc"][0]) if detail["loc"] else ""
        path = f"{section}.{key}" if section and key else section or key
        nested = ".".join([section, *map(str, detail["loc"])])
        entry = _entry_settings(settings, key)
        if entry is not None and len(detail["loc"]) > 1:
            name = str(detail["loc"][1])
            sentences |= {text: text for text in _entry_problems(entry, values[key][name], f"{path}.{name}")}
        elif detail["type"] == "extra_forbidden" and len(detail["loc"]) > 1:
            sentences[nested] = f"{nested} is not a setting."
        elif detail["type"] == "missing" and len(detail["loc"]) > 1:
            sentences[nested] = f"{nested} is missing."
        elif detail["type"] == "missing":
            sentences[path] = f"{path} is missing: it is required ({_describe_values(allowed[key])})."
        elif detail["type"] == "extra_forbidden":
            sentences[path] = unknown_key(path, key, allowed)
        elif key not in allowed:
            sentences[path] = f"{path}: {_as_clause(detail['msg'])}."
        else:
            wrong = f"{path} = {values.get(key)!r} is not allowed: {_as_clause(detail['msg'])}"
            sentences.setdefault(path, f"{wrong} ({_describe_values(allowed[key])}).")
    return list(sentences.values())


def _entry_settings(settings: type[Settings], key: str) -> type[Settings] | None:
    """Return the settings class of the entries of a setting that is a table of them, such as data.newcomers."""
    field = settings.model_fields.get(key)
    kind = get_args(field.annotation)[-1] if field and get_origin(field.annotation) is dict else None
    return kind if isinstance(kind, type) and issubclass(kind, Settings) else None


def _entry_problems(settings: type[Settings], values: Any, section: str) -> tuple[str, ...]:
    """Return the problems of one entry of a table of settings."""
    if not isinstance(values, Mapping):
        return (f"{section} = {values!r} is not allowed: it must be a table with {', '.join(settings.model_fields)}.",)
    try:
        validate(settings, values, section)
    except UserError as error:
        return error.problems
    return ()


def _as_clause(message: str) -> str:
    """Return a message of pydantic as the end of a sentence: "it must be greater than 0"."""
    message = message.removeprefix("Value error, ").replace("Input should ", "it must ").rstrip(".")
    return message[:1].lower() + message[1:]


def _describe_values(row: Mapping[str, Any]) -> str:
    """Return the type and the limits of a setting: "whole number, >= 1"."""
    return ", ".join(filter(None, (row["type"], row["allowed"])))


_TYPE_NAMES = {
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
    return _TYPE_NAMES.get(kind, kind)


def _limits(schema: Mapping[str, Any]) -> str:
    """Return the limits as text: ">= 0, < 1" or "sgd | adam"."""
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(filter(None, (_limits(s) for s in schema["anyOf"])))
    return ", ".join(f"{_SIGNS[key]} {value:g}" for key, value in schema.items() if key in _SIGNS)
