"""Nothing that a console prints can control the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedwild.core.text import HIDDEN
from fedwild.display.console import open_console, print_warning
from fedwild.display.run_display import RunDisplay

ATTACK = "cat\x1b]0;owned\x07\x1b[2J\u202e"


def printed(thing: object, **options: bool) -> str:
    stream = io.StringIO()
    open_console(file=stream, width=80).print(thing, **options)  # type: ignore[arg-type]
    return stream.getvalue()


def test_text_and_tables_are_cleaned() -> None:
    table = Table("name")
    table.add_row(Text(ATTACK))
    for thing in (ATTACK, Text(ATTACK), table):
        shown = printed(thing)
        assert f"cat{HIDDEN}" in shown
        assert not set(shown) & set("\x1b\x07\u202e")


def test_layout_and_line_breaks_stay() -> None:
    table = Table("name", title="a table")
    table.add_row("cat")
    plain = io.StringIO()
    Console(file=plain, width=80).print(table)
    assert printed(table) == plain.getvalue()
    assert printed("one\ntwo", soft_wrap=True) == "one\ntwo\n"


def test_the_styles_of_the_console_itself_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    shown = printed(Text(ATTACK, style="bold"))
    assert shown.startswith("\x1b[1mcat")
    assert "\x1b]0;" not in shown


def test_events_are_shown_on_one_line() -> None:
    stream = io.StringIO()
    display = RunDisplay(open_console(file=stream, width=200))
    display({"event": "note", "text": f"{ATTACK}\nround 9/9 train: done", "index": 0})
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()


def test_warnings_are_one_clean_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_warning(f"failed: {ATTACK}\nmore")
    assert capsys.readouterr().err == f"failed: cat{HIDDEN}]0;owned{HIDDEN}{HIDDEN}[2J{HIDDEN} more\n"
