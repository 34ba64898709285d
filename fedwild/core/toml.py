"""Writing and reading TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedwild.core.errors import UserError
from fedwild.core.files import check_regular
from fedwild.core.layers import Table

MAX_BYTES = 10_000_000
"""The maximum size of a config file."""


def read_toml(path: Path) -> Table:
    """Return the tables of a config file."""
    try:
        check_regular(path, f"config file {str(path)!r}", MAX_BYTES)
        return parse_toml(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UserError(f"config file {str(path)!r} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"config file {str(path)!r} cannot be read: {error}.") from None
    except ValueError as error:
        raise UserError(f"config file {str(path)!r} is not valid TOML: {error}.") from None


def parse_toml(text: str) -> Table:
    """Return the tables of a text. Raises `ValueError` for whatever is not TOML, or too large to read."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError("lists or tables are nested too deeply") from None
    except ValueError:
        raise ValueError("a number has too many digits") from None


def dump_toml(table: Mapping[str, Any]) -> str:
    """Return plain tables as TOML, without entries that are None."""
    lines = [f"{key} = {toml_value(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for section, values in table.items():
        if isinstance(values, dict):
            lines += ["", f"[{section}]"]
            lines += [f"{_key(key)} = {toml_value(value)}" for key, value in values.items() if value is not None]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else _quoted(key)


def _quoted(text: str) -> str:
    """Return a TOML basic string, which is escaped like a JSON string except for one control character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: Any) -> str:
    """Return a value as TOML, as `--set` reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        pairs = (f"{_quoted(str(k))} = {toml_value(v)}" for k, v in value.items() if v is not None)
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return _quoted(value) if isinstance(value, str) else repr(value)
