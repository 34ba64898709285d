"""Tables of results: printed on a terminal, or written as HTML, CSV, LaTeX or Markdown."""

from fedwild.results.tables.formats import FORMATS, csv_text, html_fragment, latex_text, markdown_text, terminal_table
from fedwild.results.tables.model import Cell, ResultTable, words
from fedwild.results.tables.terminal import print_table
from fedwild.results.tables.writing import format_of, write_table

__all__ = [
    "FORMATS",
    "Cell",
    "ResultTable",
    "csv_text",
    "format_of",
    "html_fragment",
    "latex_text",
    "markdown_text",
    "print_table",
    "terminal_table",
    "words",
    "write_table",
]
