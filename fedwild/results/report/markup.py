"""HTML and SVG as text in which nothing that others wrote can be mistaken for markup."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Html(str):
    """Markup that is ready; every other text is escaped before it becomes part of some."""


Child = str | int | float | None

VOID = frozenset({"img", "meta", "br", "input"})


def tag(name: str, /, *children: Child, **attributes: Child) -> Html:
    """An element. In attributes' names, `stroke_width` stands for stroke-width and `class_` for class; None: left out.

    True alone, as in `open=True`, is an attribute without a value.
    """
    words = [name, *(attribute(key, value) for key, value in attributes.items() if value is not None)]
    opening = f"<{' '.join(word for word in words if word)}>"
    return Html(opening if name in VOID else f"{opening}{joined(children)}</{name}>")


def attribute(key: str, value: Child) -> str:
    """One attribute; numbers as short as they can be."""
    name = key.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        return name if value else ""
    text = short(value) if isinstance(value, (int, float)) else str(value)
    return f'{name}="{html.escape(text)}"'


def joined(children: Iterable[Child]) -> Html:
    """Parts one after the other; those that are not markup are escaped."""
    return Html("".join(child if isinstance(child, Html) else html.escape(plain(child)) for child in children))


def plain(child: Child) -> str:
    return "" if child is None else str(child)


def short(value: float) -> str:
    """A coordinate: at most one decimal, which no eye can tell from more."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
