"""Numbers and names as text: counts, percentages, sizes in bytes, durations, shortened names, text from outside."""

from __future__ import annotations

import math

MAX_SHOWN = 2000
"""The maximum length of text from outside that is shown."""
HIDDEN = "\ufffd"
"""Replaces characters that a terminal would obey instead of showing."""


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: "1 client", "2 clients". Give `plural` if it is not `noun` + "s"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def percent(share: float | None, decimals: int = 1, missing: str = "-") -> str:
    """Return a share as a percentage ("12.5 %"), or `missing` for None and NaN."""
    return missing if share is None or math.isnan(share) else f"{100 * share:.{decimals}f} %"


def size(number: float) -> str:
    """Return a number of bytes with a decimal unit: "512 B", "1.5 MB"."""
    for unit, scale in (("B", 1), ("kB", 1e3), ("MB", 1e6)):
        if number < 1000 * scale:
            return f"{number / scale:.{0 if unit == 'B' else 1}f} {unit}"
    return f"{number / 1e9:.1f} GB"


def duration(seconds: float) -> str:
    """Return a duration: "12.3 s" below 100 seconds, then "5 min", then "2 h 5 min" from 100 minutes."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def cut(text: str, length: int) -> str:
    """Return `text`, shortened to `length` characters with an ellipsis if it is longer."""
    return text if len(text) <= length else text[: length - 1] + "…"


def clean(text: str, length: int = MAX_SHOWN, lines: int = 1) -> str:
    """Return text from outside as it may be shown: at most `lines` lines and `length` characters, all printable.

    Control characters, which move the cursor or change colours, and format characters, which reverse the direction of
    reading or have no width, are replaced. Line breaks that exceed `lines` and other white space become blanks.
    """
    rows = [_printable(row) for row in text[: length + 1].splitlines()]
    if len(rows) > lines:
        rows[lines - 1 :] = [" ".join(rows[lines - 1 :])]
    return cut("\n".join(rows), length)


def _printable(row: str) -> str:
    if row.isprintable():
        return row
    return "".join(
        character if character.isprintable() else " " if character.isspace() else HIDDEN for character in row
    )
