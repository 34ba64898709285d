"""The figures of a result as text: which ones are shown, with which label and unit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fedwild.core.text import percent

OPEN_SET = {
    "closed_accuracy": "closed accuracy",
    "auroc": "AUROC",
    "oscr": "OSCR",
    "open_macro_f1": "open macro-F1",
}
"""The figures that every run has, with their labels."""
IF_MEASURED = {
    "novel_accuracy": "novel accuracy",
    "number_found": "novel classes",
    "target_accuracy": "newcomer",
    "source_accuracy": "others",
    "global_accuracy": "both",
}
"""The figures of discovery and of newcomers, shown where a result has them."""
SHARES = ("auroc", "aupr", "fpr95", "ccr", "open", "os", "unk", "hos", "forgetting")
COUNTS = ("number_", "rounds", "clients")


def shown_figures(measured: Collection[str]) -> dict[str, str]:
    """Return the figures that a table of results shows, with their labels."""
    return OPEN_SET | {key: label for key, label in IF_MEASURED.items() if key in measured}


def is_share(key: str) -> bool:
    """Return whether a figure is a share, shown as a percentage. Methods' own figures are plain numbers."""
    return "accuracy" in key or key.startswith(SHARES)


def is_count(key: str) -> bool:
    """Return whether a figure is a number of things."""
    return key.startswith(COUNTS)


def epsilon_text(privacy: Mapping[str, Any]) -> str:
    """Return the epsilon of differential privacy as text; "no limit" without noise."""
    epsilon = privacy.get("epsilon")
    return "no limit" if epsilon is None else f"{epsilon:.2f}"


def figure_text(key: str, value: float | None) -> str:
    """Return a figure as text; a dash if it is undefined, such as AUROC without unknown classes."""
    if value is None or is_share(key):
        return percent(value)
    return f"{value:.0f}" if is_count(key) else f"{value:.2f}"
