"""Numbers and names as text: counts, percentages, sizes in bytes, durations, shortened names."""

from __future__ import annotations

import math


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
