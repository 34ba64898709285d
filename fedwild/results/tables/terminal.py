"""Printing a table on a console of any width."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from fedwild.display.console import open_console
from fedwild.results.tables.formats import terminal_table
from fedwild.results.tables.model import ResultTable


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
