"""The page on writing a method: its examples run, and it shows the example file."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from fedwild.contract import Method, Phase, Traits
from tests.conftest import Cli
from tests.contract.test_method import members_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "contract.md").read_text()
FIRST, EXAMPLES = PAGE.split("## Examples")
COMMANDS = re.findall(r"```bash\n(.*?)\n```", EXAMPLES, re.DOTALL)
SMALL = (
    *("--clients", "3", "--workers", "0", "--quiet", "--set", "data.train_samples=200"),
    *("--set", "method.epochs=1", "--set", "evaluation.every=0"),
)


def code(text: str) -> str:
    return "\n\n".join(re.findall(r"```python\n(.*?)\n```", text, re.DOTALL))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_runs(command: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("sketches.py").write_text(code(EXAMPLES))
    monkeypatch.delitem(sys.modules, "sketches", raising=False)
    program, *arguments = shlex.split(command)
    outcome = cli(*arguments, *SMALL, "--out", "run")
    assert (program, outcome.code, outcome.err) == ("fedwild", 0, "")
    monkeypatch.delitem(sys.modules, "sketches", raising=False)


def test_the_page_shows_the_example_file() -> None:
    assert code(FIRST) in (ROOT / "examples" / "own_method.py").read_text()


@pytest.mark.parametrize(("cls", "more"), [(Method, set()), (Phase, {"name", "rounds"}), (Traits, set())])
def test_the_page_explains_every_member(cls: type, more: set[str]) -> None:
    missing = [name for name in members_of(cls) | more if not re.search(rf"`{name}\b", FIRST)]
    assert set(missing) <= {"params", "name"}
