"""Sections about the common model, or about the worst and the best client's models."""

from __future__ import annotations

from collections.abc import Callable

from fedwild.results.report.answers import ModelAnswers
from fedwild.results.report.facts import Facts
from fedwild.results.report.markup import Html, joined, tag


def for_each_view(facts: Facts, draw: Callable[[ModelAnswers], Html]) -> Html:
    """Return what `draw` gives for every model that is shown, under the name of its client."""
    parts: list[Html] = []
    for answers in facts.views:
        if answers.client is not None:
            parts.append(tag("h3", f"{answers.client} ", tag("small", answers.about)))
        if answers.is_part:
            text = f"On {len(answers.rows)} of {answers.total} test samples, drawn at random."
            parts.append(tag("p", text, class_="note"))
        parts.append(draw(answers))
    return joined(parts)
