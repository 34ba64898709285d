"""Registries: components by name or import path; every mistake gives one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field

from fedwild.core.component import Component, summary_of
from fedwild.core.errors import UserError
from fedwild.core.registry import Registry
from fedwild.core.settings import Settings


class Shape(Component):
    """A shape."""


class SideParams(Settings):
    side: float = Field(1.0, gt=0, description="Length of a side.")


SHAPES: Registry[Shape] = Registry("shape", Shape)


@SHAPES.add("square")
class Square(Shape):
    """Four equal sides.

    Details follow the summary.
    """

    Params = SideParams


@SHAPES.add("circle")
class Circle(Shape):
    pass


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that `own_parts:...` imports, for the test to fill."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_parts", raising=False)
    return tmp_path / "own_parts.py"


def test_registered_classes_are_found_by_name() -> None:
    assert SHAPES.names() == ["circle", "square"]
    assert SHAPES.get("square") is Square
    assert Square.name == "square"


def test_registries_are_independent() -> None:
    assert Registry[Shape]("other", Shape).names() == []


def test_make_validates_the_settings() -> None:
    assert SHAPES.make("square", {"side": 2}).params == SideParams(side=2)
    assert SHAPES.make("square").params == SideParams()
    with pytest.raises(UserError, match=r"shape\.side = -1 is not allowed: it must be greater than 0"):
        SHAPES.make("square", {"side": -1})
    with pytest.raises(UserError, match=r"shape\.radius is not a setting\."):
        SHAPES.make("circle", {"radius": 1})


def test_the_summary_is_the_first_line_of_the_docstring() -> None:
    assert summary_of(Square) == "Four equal sides."
    assert summary_of(Circle) == ""


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UserError) as caught:
        SHAPES.get("sqare")
    assert str(caught.value) == "shape 'sqare' is not known. Did you mean 'square'? Available: circle, square."


def test_an_import_path_finds_a_users_own_class(module: Path) -> None:
    module.write_text("from tests.core.test_registry import Square\nclass Mine(Square):\n    '''Mine.'''\n")
    mine = SHAPES.get("own_parts:Mine")
    assert issubclass(mine, Square)
    assert mine.name == "own_parts:Mine"
    assert Square.name == "square"
    assert "own_parts:Mine" not in SHAPES.names()


def test_an_imported_class_keeps_the_name_that_it_defines(module: Path) -> None:
    module.write_text("from tests.core.test_registry import Shape\nclass Mine(Shape):\n    name = 'mine'\n")
    assert SHAPES.get("own_parts:Mine").name == "mine"


def test_a_nested_class_can_be_imported(module: Path) -> None:
    module.write_text(
        "from tests.core.test_registry import Shape\nclass Group:\n    class Mine(Shape):\n        pass\n"
    )
    assert SHAPES.get("own_parts:Group.Mine").__name__ == "Mine"


@pytest.mark.parametrize("path", [":", "fedwild:", ":X", ".core:X"])
def test_a_malformed_import_path_is_rejected(path: str) -> None:
    with pytest.raises(UserError) as caught:
        SHAPES.get(path)
    assert str(caught.value) == f"shape {path!r} is not an import path: write it as package.module:Class."


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no_such_package:X", "ModuleNotFoundError: No module named 'no_such_package'."),
        ("fedwild.core:NoSuch", "AttributeError: module 'fedwild.core' has no attribute 'NoSuch'."),
    ],
)
def test_a_path_to_nothing_is_rejected(path: str, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        SHAPES.get(path)
    assert str(caught.value) == f"shape {path!r} cannot be imported: {reason}"


@pytest.mark.parametrize("source", ["def (", "raise RuntimeError('boom')", "1 / 0", "import no_such_package"])
def test_a_module_that_fails_to_import_is_rejected(source: str, module: Path) -> None:
    module.write_text(source + "\n")
    with pytest.raises(UserError, match="shape 'own_parts:X' cannot be imported: "):
        SHAPES.get("own_parts:X")


@pytest.mark.parametrize("path", ["os:getcwd", "os:path", "collections:OrderedDict"])
def test_an_object_of_another_kind_is_rejected_with_the_base_class(path: str) -> None:
    with pytest.raises(UserError, match=rf"shape '{path}' is not a subclass of tests\.core\.test_registry\.Shape: "):
        SHAPES.get(path)
