"""One model for everyone, or the worst and the best client's own: what is shown once or for each of them."""

from __future__ import annotations

from collections.abc import Callable

from fedwild.results.report.facts import Facts
from fedwild.results.report.markup import Html, joined, tag
from fedwild.results.report.seen import Seen


def for_each_view(facts: Facts, panels: Callable[[Facts, Seen], Html]) -> Html:
    """The panels of every model that is shown, under its client's name."""
    parts: list[Html] = []
    for seen in facts.views_or_reason():
        if seen.client is not None:
            parts.append(tag("h3", f"{seen.client} ", tag("small", seen.about)))
        if seen.is_part:
            text = f"On {len(seen.rows)} of the {seen.total} test samples, drawn by lot."
            parts.append(tag("p", text, class_="note"))
        parts.append(panels(facts, seen))
    return joined(parts)
