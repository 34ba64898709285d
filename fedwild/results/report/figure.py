"""The page's building blocks: figures in a grid, tables and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from fedwild.results.report.guard import guarded
from fedwild.results.report.markup import Child, Html, joined, tag


def figure(title: str, draw: Callable[[], Html], about: Child = None, wide: bool = False) -> Html:
    """A titled picture with a sentence on how it is read; why it is missing, if it cannot be drawn."""
    caption = tag("figcaption", tag("b", title), tag("span", about) if about else None)
    return tag("figure", caption, guarded(title, draw), class_="wide" if wide else None)


def grid(figures: Iterable[Html]) -> Html:
    """Figures side by side, as many as there is room for."""
    return tag("div", *figures, class_="grid")


def table(headings: Sequence[str], rows: Iterable[Sequence[Child]], text_columns: int = 1) -> Html:
    """A table whose first columns are text and whose others are figures; wide ones scroll by themselves."""

    def cells(kind: str, row: Sequence[Child]) -> Html:
        return tag("tr", *(tag(kind, cell, class_=None if i < text_columns else "n") for i, cell in enumerate(row)))

    body = joined([cells("td", row) for row in rows])
    return tag(
        "div", tag("table", tag("thead", cells("th", headings)), tag("tbody", body)), class_="scroll", tabindex="0"
    )


def details(summary: str, *content: Child) -> Html:
    """Something that opens on demand; print shows it as it is."""
    return tag("details", tag("summary", summary), *content)


def definitions(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Names and what they are."""
    return tag("dl", *(joined([tag("dt", name), tag("dd", value)]) for name, value in pairs))
