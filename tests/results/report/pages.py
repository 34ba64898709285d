"""Pages of runs and their sections, for tests."""

from __future__ import annotations

import re
from pathlib import Path

from fedwild.results.report import write_report

NOT_DRAWN = "could not be drawn"


def page(run: Path) -> str:
    """Write the report of a run and return its text."""
    return write_report(run).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """Return a section of a page."""
    found = re.search(rf"<section [^>]*><h2>{title}</h2>.*?</section>", text, re.S)
    assert found is not None, title
    return found[0]
