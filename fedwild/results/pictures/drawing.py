"""How figures look, and how pictures are written. Nothing here changes matplotlib's global settings.

Files are PNG, SVG or PDF by the ending of the name, whole or not at all, and the same bytes each time.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from fedwild.core.errors import UserError
from fedwild.core.text import cut
from fedwild.results.output import write_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

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
# Files must not hold the time at which they were written.
METADATA: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}


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


def check_ending(path: Path) -> str:
    """Return the format that the ending of a file's name stands for. Raises `UserError` if it stands for none."""
    ending = path.suffix.lower().removeprefix(".")
    if ending not in METADATA:
        raise UserError(f"--out {str(path)!r} is not allowed: the file's name must end in .png, .svg or .pdf.")
    return ending


def check_drawable(path: Path) -> None:
    """Raise `UserError` if a figure cannot be drawn into this file, before hours are spent on what it shows."""
    check_ending(path)
    with styled():
        pass


def write_figure(figure: Figure, path: Path, tight: bool = True) -> None:
    """Write a figure. `tight` makes the page as large as everything that is drawn."""
    kind, buffer = check_ending(path), io.BytesIO()
    page: dict[str, Any] = {"bbox_inches": "tight", "pad_inches": 0.12} if tight else {}
    with styled(), warnings.catch_warnings():
        # Characters that the font does not have become boxes.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        figure.savefig(buffer, format=kind, dpi="figure", metadata=METADATA[kind], **page)
    write_output(path, buffer.getvalue())


def write_image(image: Image, path: Path) -> None:
    """Write an image. An SVG or a PDF has it pixel for pixel."""
    if check_ending(path) == "png":
        buffer = io.BytesIO()
        image.save(buffer, format="PNG")
        return write_output(path, buffer.getvalue())
    with styled():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(image.width / SHEET_DPI, image.height / SHEET_DPI), dpi=SHEET_DPI)
        figure.figimage(np.asarray(image))
    return write_figure(figure, path, tight=False)
