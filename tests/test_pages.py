"""What the pages say is true: the files, functions, settings, commands, components and imports that they name exist."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from fedwild.aggregation import AGGREGATIONS
from fedwild.cli.app import app
from fedwild.data import DATASETS, PARTITIONS
from fedwild.discovery import ESTIMATORS
from fedwild.methods import METHODS
from fedwild.methods.registry import demonstration
from fedwild.models import MODELS
from fedwild.openset import SCORES
from fedwild.training.corrections import CORRECTIONS
from fedwild.training.objectives import OBJECTIVES
from tests.tiny import own

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md")) + [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
METHOD_PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
COMMANDS: Any = typer.main.get_command(app)
NAMED = re.compile(r"`([^`]+)`")
IDENTIFIER = re.compile(r"\w+(\.(?!py$)\w+)?")


def _tables(page: Path) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Yield the header and the rows of each table on a page."""
    lines: list[list[str]] = []
    for line in [*page.read_text().splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif lines:
            yield lines[0], lines[2:]
            lines = []


def _title(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_title)
def test_files_exist(page: Path) -> None:
    files = re.findall(r"\b(?:fedwild|tests|examples|benchmarks)/[\w/-]+\.(?:py|toml|md)\b", page.read_text())
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_functions_exist() -> None:
    """The tables of equations name the functions that compute them."""
    defined = set()
    for file in (ROOT / "fedwild").rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                defined.add(node.name)
            if isinstance(node, ast.ClassDef):
                defined |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    missing = []
    for page in METHOD_PAGES:
        for header, rows in _tables(page):
            if header[-1].startswith("Function"):
                names = [name for row in rows for name in NAMED.findall(row[-1]) if IDENTIFIER.fullmatch(name)]
                missing += [f"{page.name}: {name}" for name in names if name not in defined]
    assert missing == []


@pytest.mark.parametrize("page", METHOD_PAGES, ids=_title)
def test_settings_have_these_defaults(page: Path) -> None:
    method = METHODS.get(page.stem)
    fields, digits = method.Params.model_fields, demonstration(method).get("method", {})
    for header, rows in _tables(page):
        if header[:2] != ["`method.`", "Default"]:
            continue
        for row in rows:
            for key in NAMED.findall(row[0]):
                owner = fields if key in fields else METHODS.get(f"distilled-{page.stem}").Params.model_fields
                assert _same(row[1], owner[key].default), f"{key}: {row[1]} is not {owner[key].default!r}"
                if header[2] == "On `digits`":
                    expected = row[2] if row[2] else row[1]
                    assert _same(expected, digits.get(key, fields[key].default)), f"{key} on digits: {expected}"


def _same(cell: str, value: Any) -> bool:
    """Whether a cell shows a value, up to its notation."""
    text = cell.replace("`", "").replace('"', "").replace(",", "")
    if isinstance(value, bool) or value is None:
        return text == {True: "true", False: "false", None: "none"}[value]
    return float(text) == value if isinstance(value, (int, float)) else text == value


def test_commands_have_these_options() -> None:
    wrong = []
    for page in PAGES:
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                wrong += [f"{_title(page)}: {line}: {problem}" for problem in _problems(line)]
    assert wrong == []


def _problems(line: str) -> list[str]:
    """Return what is wrong with a line of a shell, if it is a fedwild command."""
    words = shlex.split(line, comments=True)
    if not words or words[0] != "fedwild":
        return []
    command = COMMANDS
    for word in words[1:]:
        if not hasattr(command, "commands") or word.startswith("-"):
            break
        if word not in command.commands:
            return [f"no command {word}"]
        command = command.commands[word]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    return [f"no option {option}" for option in sorted(options - known)]


@pytest.mark.parametrize("page", PAGES, ids=_title)
def test_code_can_be_parsed_and_imports_what_exists(page: Path) -> None:
    for language, block in re.findall(r"^```(python|toml)\n(.*?)^```", page.read_text(), re.S | re.M):
        if language == "toml":
            tomllib.loads(block)
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedwild"):
                exec(ast.unparse(node), {})


def test_the_readme_names_every_component() -> None:
    registries = {
        "Methods": own(METHODS),
        "Objectives": own(OBJECTIVES),
        "Corrections": own(CORRECTIONS),
        "Aggregations": own(AGGREGATIONS),
        "Numbers of novel classes": own(ESTIMATORS),
        "Unknown scores": own(SCORES),
        "Partitions": own(PARTITIONS),
        "Networks": own(MODELS),
    }
    rows = {row[0]: row[1] for header, rows in _tables(ROOT / "README.md") for row in rows if header[0] == "Kind"}
    for kind, names in registries.items():
        assert sorted(NAMED.findall(rows[kind])) == sorted(names), kind
    assert rows["Data"].startswith(f"{len(DATASETS)} data sets")


def test_every_method_has_a_page_or_is_on_that_of_another() -> None:
    text = "".join(page.read_text() for page in METHOD_PAGES)
    assert [name for name in METHODS.names() if f"`{name}`" not in text and f"# {name}" not in text] == []
