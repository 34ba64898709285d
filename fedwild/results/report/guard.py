"""A failure in one part of a report does not affect the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fedwild.core.errors import UserError
from fedwild.results.report.markup import Html, prose, tag

log = logging.getLogger("fedwild.results.report")


def failure_of(attempt: Callable[[], Any]) -> str:
    """Return an empty text if `attempt` succeeds, else a sentence that gives the reason."""
    try:
        attempt()
        return ""
    except UserError as error:
        return sentence(str(error))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        log.warning("a part of the report is missing: %s", problem)
        return sentence(problem)


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
