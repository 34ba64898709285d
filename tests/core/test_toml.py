"""TOML: what is written can be read, and unreadable files give one sentence."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedwild.core.errors import UserError
from fedwild.core.toml import dump_toml, read_toml, toml_value

TABLE: dict[str, Any] = {
    "seed": 3,
    "method": {"name": "fedavg", "lr": 0.1, "balanced": True, "hidden": [8, 4]},
    "data": {"labels": {"zwei = 2": "ä", 'quo"te': "b\\s\x7f"}, "spaced key": 1, "known": ["a", "b"]},
}


def test_tables_survive_a_round_trip() -> None:
    assert tomllib.loads(dump_toml(TABLE)) == TABLE


def test_none_is_omitted() -> None:
    assert dump_toml({"data": {"size": None, "known": 2, "a": {"b": None}}}) == "\n[data]\nknown = 2\na = {  }\n"


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (0.5, "0.5"), ("a", '"a"'), ([1, "b"], '[1, "b"]'), ((1, 2), "[1, 2]")]
)
def test_values_are_written_as_toml(value: Any, text: str) -> None:
    assert toml_value(value) == text


def test_a_file_with_a_byte_order_mark_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("\ufeffseed = 1\n", encoding="utf-8")
    assert read_toml(tmp_path / "a.toml") == {"seed": 1}


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "does not exist"), (b"[x\n", "is not valid TOML"), (b"\xff", "cannot be read")]
)
def test_unreadable_files_are_reported(content: bytes | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=reason) as caught:
        read_toml(path)
    assert str(caught.value).startswith(f"config file {str(path)!r} ")
