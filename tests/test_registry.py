"""Named parts: found by name or by import path, and every way to get that wrong is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedwild.errors import UserError
from fedwild.methods import METHODS
from fedwild.methods.fedavg import FedAvg
from fedwild.registry import Registry


class Shape:
    """A base class."""


def registry() -> Registry[Shape]:
    shapes: Registry[Shape] = Registry("shape", lambda: Shape)

    @shapes.add("square")
    class Square(Shape):
        pass

    @shapes.add("circle")
    class Circle(Shape):
        pass

    return shapes


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that `own_parts:...` imports, for the test to fill."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_parts", raising=False)
    return tmp_path / "own_parts.py"


def test_registered_classes_are_found_and_know_their_names() -> None:
    shapes = registry()
    assert shapes.names() == ["circle", "square"]
    assert shapes.get("square").name == "square"  # type: ignore[attr-defined]
    assert issubclass(shapes.get("circle"), Shape)


def test_two_registries_share_nothing() -> None:
    registry()
    assert Registry("other", lambda: Shape).names() == []


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"shape 'sqare' is not known\. Did you mean 'square'\? Available: circle, squ"):
        registry().get("sqare")


def test_an_import_path_finds_the_users_own_class(module: Path) -> None:
    module.write_text("from fedwild.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    '''Mine.'''\n")
    mine = METHODS.get("own_parts:Mine")
    assert issubclass(mine, FedAvg)
    assert mine.name == "own_parts:Mine"
    assert FedAvg.name == "fedavg"
    assert "own_parts:Mine" not in METHODS.names()


def test_an_imported_class_keeps_a_name_of_its_own(module: Path) -> None:
    module.write_text("from fedwild.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = 'mine'\n")
    assert METHODS.get("own_parts:Mine").name == "mine"


@pytest.mark.parametrize("path", ["no_such_package:X", "fedwild.methods:NoSuch", ":", "fedwild:", ":X", ".methods:X"])
def test_a_path_that_leads_nowhere_is_a_sentence(path: str) -> None:
    with pytest.raises(UserError) as caught:
        METHODS.get(path)
    (sentence,) = caught.value.problems
    assert sentence.startswith("method ")
    assert repr(path) in sentence


@pytest.mark.parametrize("source", ["def (", "raise RuntimeError('boom')", "1 / 0", "import no_such_package"])
def test_a_module_that_fails_to_import_is_a_sentence(source: str, module: Path) -> None:
    module.write_text(source + "\n")
    with pytest.raises(UserError, match="method 'own_parts:X' cannot be imported"):
        METHODS.get("own_parts:X")


@pytest.mark.parametrize("path", ["os:getcwd", "os:path", "collections:OrderedDict"])
def test_something_that_is_no_such_part_is_refused_with_the_base_class(path: str) -> None:
    with pytest.raises(UserError, match=rf"method '{path}' is not a subclass of fedwild\.protocol\.Method"):
        METHODS.get(path)
