"""Everything imported is declared in pyproject.toml, everything declared is used, and the wheel holds every file."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path

import pytest

from fedwild.core.version import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIREMENT = re.compile(r"(?P<name>[\w-]+)(\[[\w,]+\])?>=(?P<lowest>[\d.]+)(,<[\d.]+)?$")
OWN = {"fedwild", "tests", "benchmarks", "examples"}

# Modules that are not named after their distribution.
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "ot": "pot", "markdown_it": "markdown-it-py"}
# Packages that no line of ours imports, and what uses them.
INDIRECT = {
    "click": "typer, whose help needs a version below 8.5",
    "tensorboard": "torch.utils.tensorboard",
}
# Development tools, with a file that uses them and the text to look for in it.
TOOLS = {
    "ruff": ("Makefile", "ruff check"),
    "mypy": ("Makefile", "mypy"),
    "pytest-cov": ("Makefile", "--cov"),
    "pytest-xdist": ("Makefile", "pytest -n"),
    "pre-commit": (".pre-commit-config.yaml", "repos:"),
    "mkdocs-material": ("mkdocs.yml", "name: material"),
    "mkdocstrings": ("mkdocs.yml", "- mkdocstrings:"),
    "playwright": ("tests/browser.py", "playwright.sync_api"),
}


def _lowest(*groups: str) -> dict[str, str]:
    """Return the lower bound of each requirement: of the package itself for `core`, and of extras by name."""
    bounds = {}
    for group in groups:
        entries = PROJECT["dependencies"] if group == "core" else PROJECT["optional-dependencies"][group]
        for entry in entries:
            found = REQUIREMENT.match(entry)
            assert found, f"{entry!r} does not state a lower bound"
            bounds[found["name"].lower()] = found["lowest"]
    return bounds


@cache
def _imports(*folders: str) -> dict[str, Path]:
    """Return the distributions that the sources import, lazily too, each with a file that does."""
    found = {}
    for file in sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                modules = [node.module]
            for top in {module.partition(".")[0] for module in modules} - OWN - sys.stdlib_module_names:
                found[DISTRIBUTIONS.get(top, top)] = file
    return found


EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - {"dev", "docs"})


def test_every_import_is_declared() -> None:
    package = {name: file for name, file in _imports("fedwild").items() if name not in _lowest("core", *EXTRAS)}
    assert package == {}
    around = _imports("tests", "benchmarks", "examples", "docs")
    declared = _lowest("core", "dev", "docs", *EXTRAS)
    assert {name: file for name, file in around.items() if name not in declared} == {}


def test_everything_declared_is_used() -> None:
    assert _lowest("core", *EXTRAS).keys() - _imports("fedwild").keys() - INDIRECT.keys() == set()
    unused = _lowest("dev", "docs").keys() - _imports("tests", "benchmarks", "examples", "docs").keys() - TOOLS.keys()
    assert unused == set()
    assert [tool for tool, (file, text) in TOOLS.items() if text not in (ROOT / file).read_text()] == []


def test_modules_of_an_extra_are_imported_only_where_it_is_needed() -> None:
    """`import fedwild` and the commands that need no extra work without any; so do the modules that draw."""
    pictures = (ROOT / "fedwild" / "results" / "pictures").glob("*.py")
    drawing = ", ".join(f"fedwild.results.pictures.{file.stem}" for file in pictures)
    modules = f"fedwild.api, fedwild.cli, fedwild.cli.show, fedwild.cli.data, {drawing}"
    code = f"import sys, {modules}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    names = {DISTRIBUTIONS.get(name, name) for name in loaded.stdout.split()}
    assert names & _lowest(*EXTRAS).keys() == set()


def test_the_lowest_versions_are_those_that_are_tried() -> None:
    """flwr pins most of what it needs, so `make bounds` leaves out the extra `flower`."""
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    tried = dict(line.split("==") for line in lines if not line.startswith("#"))
    declared = _lowest("core", *(set(EXTRAS) - {"flower"}))
    assert {name.lower() for name in tried} == declared.keys()
    for name, version in tried.items():
        lowest = declared[name.lower()]
        assert version == lowest or re.fullmatch(rf"{re.escape(lowest)}(\.0)+", version), name


def test_there_is_one_version() -> None:
    assert PROJECT["dynamic"] == ["version"]
    assert importlib.metadata.version("fedwild") == __version__
    assert f"version: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    places = [
        file for file in (ROOT / "fedwild").rglob("*.py") if re.search(r"^__version__ = ", file.read_text(), re.M)
    ]
    assert places == [ROOT / "fedwild" / "core" / "version.py"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "fedwild", folder / "fedwild", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", str(folder), str(folder)], check=True, capture_output=True)
    (file,) = folder.glob("*.whl")
    return file


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    sources = {file for file in (ROOT / "fedwild").rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("fedwild/")}
    assert packed == {file.relative_to(ROOT).as_posix() for file in sources}
    assert f"-{__version__}-" in wheel.name
