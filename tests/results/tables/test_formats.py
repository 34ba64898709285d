"""A table in every format: bold and undefined cells, and names with special characters."""

from __future__ import annotations

import csv
import html.parser
import io
import re
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from fedwild.results.tables.formats import (
    csv_text,
    html_fragment,
    html_text,
    latex_text,
    markdown_text,
    print_table,
    terminal_table,
)
from fedwild.results.tables.model import Cell, ResultTable, words

HOSTILE = [
    "<script>alert(1)</script>",
    "a & b < c",
    "pipe | in *a* _name_ `code`",
    "[link](javascript:alert(1))",
    r"back\slash \input{/etc/passwd} $x^2$ 50% #1 {a} ~",
    'quote " and, comma',
    "two\nlines",
    "carriage\rreturn",
    "\x1b[31mred",
    "**bold** ~~gone~~ &lt;",
    "=1+1",
    "{0} {title}",
    "[0, 1]",
]
TABLE = ResultTable(
    "A title",
    ("runs", "AUROC"),
    (
        (words("first"), Cell("90.0 ± 1.0 %", best=True, values=(("mean", 0.9), ("deviation", 0.01)))),
        (words("second"), Cell("-", values=(("mean", float("nan")), ("deviation", None)))),
    ),
    ("A note.",),
)


def with_name(name: str) -> ResultTable:
    """Return a table that has the name in every place."""
    return ResultTable(name, (name, "n"), ((words(name), Cell("1", best=True)), (words("x"), Cell("2"))), (name,))


class Seen(html.parser.HTMLParser):
    """The tags of a page, and the text of its cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells and self.tags[-1] in ("td", "th", "strong"):
            self.cells[-1] += data.strip("\n")


def one_line(name: str) -> str:
    return re.sub(r"[\n\r\x1b]", " ", name)


# --- HTML ----------------------------------------------------------------------------------------------------


def test_html_has_the_best_in_bold_right_aligned_numbers_and_the_notes() -> None:
    text = html_fragment(TABLE)
    assert '<td class="number"><strong>90.0 ± 1.0 %</strong></td>' in text
    assert "<td>first</td>" in text
    assert '<td class="number">-</td>' in text
    assert "<caption>A title</caption>" in text
    assert "<p>A note.</p>" in text


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_escaped_in_html(name: str) -> None:
    plain, hostile = Seen(html_text(with_name("name"))), Seen(html_text(with_name(name)))
    assert hostile.tags == plain.tags
    assert hostile.cells[2].replace("\r", "\n") == name.replace("\r", "\n")


def test_a_page_is_self_contained() -> None:
    text = html_text(TABLE)
    assert text.startswith("<!doctype html>")
    assert "<title>A title</title>" in text
    assert not re.search(r"src=|href=|url\(|@import", text)


# --- CSV -----------------------------------------------------------------------------------------------------


def test_csv_has_all_digits_and_empty_cells_for_undefined_numbers() -> None:
    assert csv_text(TABLE) == "runs,AUROC mean,AUROC deviation\nfirst,0.9,0.01\nsecond,,\n"


def test_csv_has_the_numbers_of_numpy() -> None:
    values: tuple[Any, ...] = (("a", np.float64(0.1)), ("b", np.int64(3)), ("c", float("inf")), ("d", 7))
    table = ResultTable("", ("x",), ((Cell("", values=values),),))
    assert csv_text(table) == "x a,x b,x c,x d\n0.1,3,,7\n"


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_quoted_in_csv(name: str) -> None:
    text = csv_text(with_name(name))
    assert list(csv.reader(io.StringIO(text, newline=""))) == [[one_line(name), "n"], [one_line(name), "1"], ["x", "2"]]


# --- Markdown ------------------------------------------------------------------------------------------------


def test_markdown_is_a_table_with_the_best_in_bold() -> None:
    expected = [
        "**A title**",
        "",
        "| runs | AUROC |",
        "| --- | --: |",
        "| first | **90.0 ± 1.0 %** |",
        "| second | - |",
        "",
        "A note.",
    ]
    assert markdown_text(TABLE).splitlines() == expected


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_escaped_in_markdown(name: str) -> None:
    page = (
        MarkdownIt("commonmark", {"html": True})
        .enable(["table", "strikethrough"])
        .render(markdown_text(with_name(name)))
    )
    seen = Seen(page)
    head, best, other = ["thead", "tr", "th", "th", "tbody"], ["tr", "td", "td", "strong"], ["tr", "td", "td"]
    assert seen.tags == ["p", "strong", "table", *head, *best, *other, "p"]
    assert seen.cells[2].strip() == one_line(name).strip()


# --- LaTeX ---------------------------------------------------------------------------------------------------


def test_latex_is_a_booktabs_table_with_the_best_in_bold() -> None:
    lines = latex_text(TABLE).splitlines()
    assert lines[0] == r"\begin{table}"
    assert lines[-1] == r"\end{table}"
    assert r"\caption{A title}" in lines
    assert r"\begin{tabular}{lr}" in lines
    assert r"first & \textbf{90.0 $\pm$ 1.0 \%} \\" in lines
    assert r"second & - \\" in lines
    assert [line for line in lines if line.endswith("rule")] == [r"\toprule", r"\midrule", r"\bottomrule"]


OURS = {"textbackslash", "textasciitilde", "textasciicircum", "textbf", "caption", "begin", "end", "centering"}
OURS |= {"toprule", "midrule", "bottomrule", "par", "smallskip", "footnotesize", "pm", "geq", "leq", "dots", "dagger"}


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_escaped_in_latex(name: str) -> None:
    text = latex_text(with_name(name))
    assert set(re.findall(r"\\([a-zA-Z]+)", text)) <= OURS
    # There are no other rows, and no cell starts with a character that would be an argument of the row end.
    assert text.count("\\\\\n") == 3
    assert not re.search(r"(\\\\|rule)\s*[\[*]", text)
    bare = re.sub(r"\\[\\&%$#_{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("&") == 3
    assert not set("%#_~^") & set(bare)
    assert bare.count("$") % 2 == 0


def test_characters_that_pdflatex_does_not_support_become_commands() -> None:
    text = latex_text(with_name("± − ≥ ≤ … † β Δ < >"))
    assert text.isascii()


# --- the terminal --------------------------------------------------------------------------------------------


def console(width: int, terminal: bool) -> Console:
    return Console(
        file=io.StringIO(), width=width, force_terminal=terminal, color_system="standard" if terminal else None
    )


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_the_best_in_bold_and_the_notes_below() -> None:
    screen = console(80, terminal=True)
    print_table(screen, TABLE)
    assert re.search(r"\x1b\[1m *90\.0 ± 1\.0 %\x1b\[0m", printed(screen))
    assert printed(screen).endswith("A note.\n")


def test_a_narrow_terminal_gets_lines() -> None:
    screen = console(18, terminal=True)
    print_table(screen, TABLE)
    plain = re.sub(r"\x1b\[\d+m", "", printed(screen)).splitlines()
    assert plain == ["A title", "first", "  AUROC: 90.0 ± 1.0 %", "second", "  AUROC: -", "A note."]


def test_a_pipe_has_no_width() -> None:
    wide = ResultTable("", ("name", "n"), ((words("x" * 300), Cell("1")),))
    pipe = console(80, terminal=False)
    print_table(pipe, wide)
    assert any("x" * 300 in line and "1" in line for line in printed(pipe).splitlines())


@pytest.mark.parametrize("name", [*HOSTILE, "[bold]markup[/bold]", "[/]"])
def test_names_are_printed_without_markup_and_control_codes(name: str) -> None:
    screen = console(300, terminal=False)
    screen.print(terminal_table(with_name(name)))
    assert one_line(name).strip() in printed(screen)
    assert not set("\x1b\r") & set(printed(screen))


# --- the table itself ----------------------------------------------------------------------------------------


def test_a_row_with_too_few_cells_is_an_error() -> None:
    with pytest.raises(ValueError, match="1 cells under 2 headings"):
        ResultTable("", ("a", "b"), ((words("x"),),))


def test_an_empty_table_can_be_written_in_every_format() -> None:
    empty = ResultTable("", ("a", "b"), ())
    assert csv_text(empty) == "a,b\n"
    assert markdown_text(empty) == "| a | b |\n| --- | --- |\n"
    assert r"\caption" not in latex_text(empty)
    assert "<caption>" not in html_fragment(empty)
