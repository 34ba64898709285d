"""The building blocks of the page: figures in a grid, tables and lists. A failure in one does not affect others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from fedwild.core.errors import UserError
from fedwild.results.report.markup import Child, Html, joined, prose, tag

T = TypeVar("T")
log = logging.getLogger("fedwild.results.report")


def figure(title: str, draw: Callable[[], Html], about: str = "", wide: bool = False) -> Html:
    """Return a titled figure with an explanation; if it cannot be drawn, the reason takes its place."""
    caption = tag("figcaption", tag("b", title), tag("span", prose(about)) if about else None)
    return tag("figure", caption, guarded(title, draw), class_="wide" if wide else None)


def grid(figures: Iterable[Html]) -> Html:
    """Return figures side by side, as many as fit."""
    return tag("div", *figures, class_="grid")


def table(header: Sequence[str], rows: Iterable[Sequence[Child]], text_columns: int = 1) -> Html:
    """Return a table whose first columns are text and whose other columns are numbers. Wide tables scroll."""

    def cells(kind: str, row: Sequence[Child]) -> Html:
        return tag("tr", *(tag(kind, cell, class_=None if i < text_columns else "n") for i, cell in enumerate(row)))

    body = joined([cells("td", row) for row in rows])
    return tag(
        "div", tag("table", tag("thead", cells("th", header)), tag("tbody", body)), class_="scroll", tabindex="0"
    )


def details(summary: str, *content: Child, is_open: bool = False) -> Html:
    """Return content that the reader can open and close."""
    return tag("details", tag("summary", summary), *content, open=is_open)


def definitions(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Return names with their values."""
    return tag("dl", *(joined([tag("dt", name), tag("dd", value)]) for name, value in pairs))


def result_or_reason(attempt: Callable[[], T]) -> tuple[T | None, str]:
    """Return what `attempt` returns and an empty text; if it fails, None and a sentence with the reason."""
    try:
        return attempt(), ""
    except UserError as error:
        return None, sentence(str(error))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        log.warning("a part of the report is missing: %s", problem)
        return None, sentence(problem)


def guarded(title: str, draw: Callable[[], Html]) -> Html:
    """Return a part of the page, or a sentence that says why it is missing."""
    try:
        return draw()
    except UserError as error:
        return reason(sentence(str(error)))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        log.warning("report: %s could not be drawn: %s", title, problem)
        return reason(f"This could not be drawn: {problem}", failed=True)


def reason(text: str, failed: bool = False) -> Html:
    """Return a sentence that stands in for a figure."""
    return tag("p", prose(text), class_="why failed" if failed else "why")


def sentence(text: str) -> str:
    """Return text on one line. It begins with a capital letter, unless its first word is the name of a setting."""
    line = " ".join(text.split())
    return line[:1].upper() + line[1:] if line.partition(" ")[0].isalpha() else line
