"""What goes wrong with one part of a report must not cost the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from fedwild.core.errors import UserError
from fedwild.results.report.markup import Html, tag

log = logging.getLogger("fedwild.results.report")


def reason_of(attempt: Callable[[], Any]) -> str:
    """Try something: an empty text if it went well, else a sentence that says why not."""
    try:
        attempt()
        return ""
    except UserError as error:
        return sentence(str(error))
    except Exception as error:
        log.warning("the report goes on without a part of it: %s: %s", type(error).__name__, error)
        return sentence(f"{type(error).__name__}: {error}")


def guarded(title: str, draw: Callable[[], Html]) -> Html:
    """A part of the page, or a sentence that says why it is not there."""
    try:
        return draw()
    except UserError as error:
        return why(sentence(str(error)))
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        log.warning("report: %s could not be drawn: %s", title, problem)
        return why(f"This could not be drawn: {problem}", failed=True)


def why(text: str, failed: bool = False) -> Html:
    """A sentence in the place of a picture."""
    return tag("p", text, class_="why failed" if failed else "why")


def sentence(text: str) -> str:
    """On one line, with a capital letter where it begins with a word and not with a setting."""
    line = " ".join(text.split())
    return line[:1].upper() + line[1:] if line.partition(" ")[0].isalpha() else line
