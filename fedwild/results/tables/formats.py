"""A table in each of the formats, printed on a console or written to a file."""

from __future__ import annotations

import csv
import html
import io
import math
import os
from collections.abc import Callable, Iterable
from numbers import Integral
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedwild.core.errors import UserError, explain_os_errors
from fedwild.display.console import open_console
from fedwild.results.output import write_output
from fedwild.results.tables.model import Cell, ResultTable

NAME_WIDTH = 20
LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "<": r"$<$",
    ">": r"$>$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "…": r"\dots{}",
    # After `\\\\`, LaTeX would read a bracket or a star as an argument.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "†": r"$\dagger$",
    "β": r"$\beta$",
    "Δ": r"$\Delta$",
}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }}
.wide {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
caption {{ font-weight: 600; font-size: 1.15rem; text-align: left; padding: .5rem 0 }}
th, td {{ padding: .3rem .7rem; border-bottom: 1px solid #8886; text-align: left }}
td.number, th.number {{ text-align: right }}
p {{ margin: .4rem 0; opacity: .8 }}
</style></head><body>
{body}
</body></html>
"""


def terminal_table(table: ResultTable) -> Table:
    """Return a table for rich's console."""
    shown = Table(title=Text(_one_line(table.title)) if table.title else None)
    for column, heading in enumerate(table.headings):
        justify: Literal["right", "left"] = "right" if table.is_number(column) else "left"
        words = [word for row in table.rows for word in row[column].text.split()]
        # Only names that would take the space of other columns are folded.
        narrowest = min(max(map(len, words), default=1), NAME_WIDTH)
        shown.add_column(Text(_one_line(heading)), justify=justify, overflow="fold", min_width=narrowest)
    for row in table.rows:
        shown.add_row(*(Text(_one_line(cell.text), style="bold" if cell.best else "") for cell in row))
    return shown


def csv_text(table: ResultTable) -> str:
    """Return CSV with all digits of numbers, each in its own column, and undefined ones empty."""
    split = [_names(table, column) for column in range(len(table.headings))]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        [
            _one_line(f"{heading} {name}".strip())
            for heading, names in zip(table.headings, split, strict=True)
            for name in names or [""]
        ]
    )
    for row in table.rows:
        line: list[str] = []
        for cell, names in zip(row, split, strict=True):
            values = dict(cell.values)
            line += [_plain(values.get(name)) for name in names] if names else [_one_line(cell.text)]
        writer.writerow(line)
    return stream.getvalue()


def markdown_text(table: ResultTable) -> str:
    """Return a table in GitHub's Markdown."""
    numbers = [table.is_number(column) for column in range(len(table.headings))]
    lines = [f"**{_markdown(table.title)}**", ""] if table.title else []
    lines.append(_pipes(_markdown(heading) for heading in table.headings))
    lines.append(_pipes("--:" if number else "---" for number in numbers))
    lines += [_pipes(_bold(cell, _markdown(cell.text), "**{}**") for cell in row) for row in table.rows]
    lines += [f"\n{_markdown(note)}" for note in table.notes]
    return "\n".join(lines) + "\n"


def latex_text(table: ResultTable) -> str:
    """Return a LaTeX `table`, which needs the booktabs package."""
    columns = "".join("r" if table.is_number(column) else "l" for column in range(len(table.headings)))
    lines = [r"\begin{table}", r"\centering"]
    if table.title:
        lines.append(rf"\caption{{{_latex(table.title)}}}")
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines.append(" & ".join(_latex(heading) for heading in table.headings) + r" \\")
    lines.append(r"\midrule")
    for row in table.rows:
        lines.append(" & ".join(_bold(cell, _latex(cell.text), r"\textbf{{{}}}") for cell in row) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    if table.notes:
        lines.append(r"\par\smallskip\footnotesize " + " ".join(_latex(note) for note in table.notes))
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def html_fragment(table: ResultTable) -> str:
    """Return the table without a page around it."""
    numbers = [' class="number"' if table.is_number(column) else "" for column in range(len(table.headings))]
    caption = f"<caption>{html.escape(table.title)}</caption>" if table.title else ""
    head = "".join(
        f"<th{number}>{html.escape(heading)}</th>" for heading, number in zip(table.headings, numbers, strict=True)
    )
    lines = [f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead><tbody>']
    for row in table.rows:
        cells = (
            f"<td{number}>{_bold(cell, html.escape(cell.text), '<strong>{}</strong>')}</td>"
            for cell, number in zip(row, numbers, strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    lines.append("</tbody></table></div>")
    lines += [f"<p>{html.escape(note)}</p>" for note in table.notes]
    return "\n".join(lines)


def html_text(table: ResultTable) -> str:
    """Return a self-contained page."""
    return PAGE.format(title=html.escape(table.title or "results"), body=html_fragment(table))


FORMATS: dict[str, Callable[[ResultTable], str]] = {
    "html": html_text,
    "csv": csv_text,
    "tex": latex_text,
    "md": markdown_text,
}


def _names(table: ResultTable, column: int) -> list[str]:
    """Return the names of a column's numbers, in order of first appearance."""
    return list(dict.fromkeys(name for row in table.rows for name, _ in row[column].values))


def _plain(value: float | int | None) -> str:
    """Return a number, of Python or NumPy, with all its digits."""
    if value is None or not math.isfinite(value):
        return ""
    return str(int(value)) if isinstance(value, Integral) else repr(float(value))


def _bold(cell: Cell, text: str, pattern: str) -> str:
    return pattern.format(text) if cell.best and text else text


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    for mark in "\\|*_`<[]~$&":
        text = text.replace(mark, f"\\{mark}")
    # Stars next to a space would not be read as bold.
    return _one_line(text).strip()


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in _one_line(text))


def _one_line(text: str) -> str:
    """Return the text with spaces for line ends and control characters, which would end a row."""
    return "".join(character if character.isprintable() else " " for character in text)


def print_table(console: Console, table: ResultTable) -> None:
    """Print the table and its notes, as lines if the terminal is too narrow; a file or a pipe has no width."""
    shown = terminal_table(table)
    natural = console.measure(shown, options=console.options.update(max_width=100_000)).maximum
    if natural <= console.width:
        console.print(shown)
    elif console.is_terminal:
        print_lines(console, table)
    else:
        open_console(file=console.file, width=natural).print(shown)
    for note in table.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def print_lines(console: Console, table: ResultTable) -> None:
    """Print each row as a line with its name, followed by a line per figure."""
    if table.title:
        console.print(Text(table.title), soft_wrap=True)
    for row in table.rows:
        console.print(Text(row[0].text), soft_wrap=True)
        for heading, cell in zip(table.headings[1:], row[1:], strict=True):
            console.print(Text(f"  {heading}: ") + Text(cell.text, style="bold" if cell.best else ""), soft_wrap=True)


def format_of(path: Path) -> str:
    """Return html, csv, tex or md, or reject the file. Call it before long work whose result goes there."""
    format = path.suffix.lower().removeprefix(".")
    if format not in FORMATS:
        raise UserError(f"--out {str(path)!r} is not allowed: it must end with .{', .'.join(FORMATS)}.")
    if path.is_dir():
        raise UserError(f"--out {str(path)!r} is a folder: give a file name.")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"--out {str(path)!r} cannot be written: the folder {str(parent)!r} is not writable.")
    return format


def write_table(table: ResultTable, path: Path) -> None:
    """Write the complete table, or nothing."""
    text = FORMATS[format_of(path)](table)
    with explain_os_errors(f"--out {str(path)!r} cannot be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
    # Names of folders may have characters that UTF-8 cannot encode.
    write_output(path, text.encode(errors="replace"))
