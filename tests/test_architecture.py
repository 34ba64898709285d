"""The tree shows the architecture: rooms import only rooms above them, and only methods/ knows methods by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedwild
from fedwild.methods import METHODS
from tests.tiny import own

PACKAGE = Path(fedwild.__file__).parent
ROOMS = (
    *("core", "models", "data", "contract", "statistics", "openset", "aggregation", "training", "discovery", "methods"),
    *("runs", "evaluation", "engines", "lifecycle", "sites", "display", "results", "api", "cli", "__main__"),
)
"""A room may import the rooms before it. `fedwild/__init__.py`, the public face, is the one exception."""


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Every import of fedwild in a file, at any depth, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            # `from fedwild import api` imports a room, `from fedwild import run` a public name.
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)


def room_of(name: str) -> str | None:
    """The room of a dotted name, None outside of fedwild and for its public face."""
    parts = name.split(".")
    return parts[1] if parts[0] == "fedwild" and len(parts) > 1 and parts[1] in ROOMS else None


def test_every_module_belongs_to_a_room() -> None:
    strays = {name.split(".")[1] for name in modules() if "." in name} - set(ROOMS)
    assert not strays


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_rooms_above_it(room: str) -> None:
    wrong = [
        f"{path.relative_to(PACKAGE.parent)}:{line} imports {target}"
        for name, path in modules().items()
        if room_of(name) == room
        for line, target in imports(path)
        if (other := room_of(target)) is not None and ROOMS.index(other) > ROOMS.index(room)
    ]
    assert not wrong, "\n".join(wrong)


# Ordinary words that are also names of methods' settings or classes do not count; these are the names of methods.
NAMES = {name.lower() for name in own(METHODS)}
ALLOWED = (PACKAGE / "methods", PACKAGE / "results" / "papers")
DEFAULTS = PACKAGE / "core" / "defaults.py"
"""The two documented defaults, fedavg for a run and gains for a welcome, are constants there."""


def mentions(path: Path) -> Iterator[tuple[int, str]]:
    """Names of methods in the code of a file: in strings that are not docstrings, in identifiers and in imports."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        words: list[str] = []
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            words = "".join(c if c.isalnum() or c == "-" else " " for c in node.value.lower()).split()
        elif isinstance(node, ast.Name):
            words = [node.id.lower()]
        elif isinstance(node, ast.Attribute):
            words = [node.attr.lower()]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            words = [part.lower() for name in names for part in name.split(".")]
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            words = [node.name.lower()]
        yield from ((getattr(node, "lineno", 0), word) for word in words if word in NAMES)


def test_only_methods_and_the_papers_tables_know_methods_by_name() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE.parent)}:{line} names {word}"
        for path in modules().values()
        if path != DEFAULTS and not any(path.is_relative_to(folder) for folder in ALLOWED)
        for line, word in mentions(path)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_defaults_are_the_two_that_are_documented() -> None:
    assert sorted({word for _, word in mentions(DEFAULTS)}) == ["fedavg", "gains"]


def test_no_engine_is_named_in_a_method() -> None:
    engines = {"ray", "flower", "flwr"}
    wrong = [
        f"{path}:{node.lineno}"
        for path in (PACKAGE / "methods").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in [*(alias.name for alias in node.names), getattr(node, "module", None) or ""]
        if set(name.split(".")) & engines
    ]
    assert not wrong
