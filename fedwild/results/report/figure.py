"""The building blocks of the page: figures in a grid, tables and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fedwild.results.report.guard import guarded
from fedwild.results.report.markup import Child, Html, joined, prose, tag


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
