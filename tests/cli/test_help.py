"""`--help`: every command, option and argument has a description."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from fedwild.cli.app import app
from tests.conftest import Cli


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with its words on the command line."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield (*words, name), command


ALL = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_option_and_argument_is_explained(words: tuple[str, ...], cli: Cli) -> None:
    outcome = cli(*words, "--help")
    assert outcome.code == 0
    assert "\\[" not in outcome.out
    assert ALL[words].help
    for parameter in ALL[words].params:
        assert len(parameter.help or "") > 8, parameter.name


def test_every_command_is_listed_with_a_line(cli: Cli) -> None:
    printed = cli("--help").out
    for words in ALL:
        assert f"\n  {words[0]} " in printed
