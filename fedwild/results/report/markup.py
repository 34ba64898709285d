"""HTML and SVG as text. Everything that is not markup is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Html(str):
    """Finished markup. Any other text is escaped when it becomes part of markup."""


Child = str | int | float | None

VOID = frozenset({"img", "meta", "br", "input"})
"""Elements without content."""


def tag(name: str, /, *children: Child, **attributes: Child) -> Html:
    """Return an element. Attributes that are None are omitted; `open=True` gives an attribute without a value.

    In the names of attributes, `stroke_width` stands for stroke-width and `class_` for class.
    """
    words = [name, *(attribute(key, value) for key, value in attributes.items() if value is not None)]
    opening = f"<{' '.join(word for word in words if word)}>"
    return Html(opening if name in VOID else f"{opening}{joined(children)}</{name}>")


def attribute(key: str, value: Child) -> str:
    """Return an attribute with its value; numbers are shortened."""
    name = key.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        return name if value else ""
    text = short(value) if isinstance(value, (int, float)) else str(value)
    return f'{name}="{html.escape(text)}"'


def joined(children: Iterable[Child]) -> Html:
    """Return the children one after the other; those that are not markup are escaped."""
    return Html("".join(child if isinstance(child, Html) else html.escape(plain(child)) for child in children))


def plain(child: Child) -> str:
    return "" if child is None else str(child)


def prose(text: str) -> Html:
    """Return text in which words between backticks are code."""
    return joined([tag("code", part) if number % 2 else part for number, part in enumerate(text.split("`"))])


def short(value: float) -> str:
    """Return a coordinate with at most one decimal."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
