"""The look of all figures: fonts, sizes, colours and titles. Nothing here changes matplotlib's global settings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from fedwild.core.errors import UserError
from fedwild.core.text import cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Sizes in inches, text in points.
WIDTH, DPI = 7.5, 200
SHEET_DPI = 110  # of contact sheets, whose text is 12 pixels high
TEXT, SMALL, LARGE = 9.0, 8.0, 11.0
LINE = 0.17
"""The height of a line of text."""
CHARACTER = 0.07
"""The usual width of a character."""
NAME_LENGTH = 24

# Okabe and Ito's colours first: people with colour-blindness can tell them apart. Then, other markers do.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#a89b00", "#8c564b", "#6e3cbe", "#7fa32e")
MARKERS = ("o", "s", "^", "D", "v", "P", "p", "h", "<", ">")
LINE_STYLES = ("-", "--", ":", "-.")
INK, MUTED, RULE = "#1b2027", "#545d68", "#c8cdd3"
SHADES, SIGNED_SHADES = "Blues", "PuOr_r"
"""Colour maps for numbers from 0, and for numbers of both signs."""

SETTINGS: Any = {
    "figure.dpi": DPI,
    "font.family": "DejaVu Sans",  # matplotlib brings it, so that figures are the same on every machine
    "font.size": TEXT,
    "text.color": INK,
    "text.parse_math": False,  # a name with dollar signs is not a formula
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.labelsize": TEXT,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "grid.color": "#e6e9ed",
    **{f"{axis}tick.color": RULE for axis in "xy"},
    **{f"{axis}tick.labelcolor": INK for axis in "xy"},
    **{f"{axis}tick.labelsize": SMALL for axis in "xy"},
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "pdf.fonttype": 42,  # publishers reject Type 3 fonts
    "svg.hashsalt": "fedwild",  # otherwise every SVG has other random ids
}


@contextmanager
def styled() -> Iterator[None]:
    """Use this style while a figure is made or written, whatever the user's own settings of matplotlib are.

    Raises `UserError` if matplotlib is not installed. Also a decorator.
    """
    try:
        import matplotlib
    except ImportError:
        raise UserError("`fedwild show` needs matplotlib: pip install 'fedwild[plots]'.") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def label(text: str, length: int = NAME_LENGTH) -> str:
    """Return a name as it is written in a figure: on one line, shortened."""
    return cut("".join(character if character.isprintable() else " " for character in text), length)


def wrap_lines(text: str) -> list[str]:
    """Return the lines of an explanation, none too long for a page."""
    return [line for paragraph in text.splitlines() for line in wrap(label(paragraph, 2000), 115)]


def title_height(text: str) -> float:
    """Return the height of a title and its explanation in inches."""
    return 0.35 + len(wrap_lines(text)) * SMALL * 1.4 / 72


def add_title(axes: Axes, title: str, text: str = "") -> None:
    """Write a title above the left edge of the axes, and an explanation in smaller type below the title."""
    lines = wrap_lines(text)
    axes.set_title(title, loc="left", fontsize=LARGE, fontweight="bold", pad=9 + len(lines) * SMALL * 1.4)
    place = ((0, 1), (0, 6), "axes fraction", "offset points")
    axes.annotate("\n".join(lines), *place, color=MUTED, fontsize=SMALL, linespacing=1.3, va="bottom")
