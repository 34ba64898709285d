"""Which classes a run's model takes for which, and for unknown: the confusion matrix as figures and as a PNG."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedwild.classes import UNKNOWN_NAME
from fedwild.metrics import confusion_matrix
from fedwild.pictures.drawing import cut, write_png
from fedwild.pictures.heat_map import HeatMap
from fedwild.pictures.heat_map import draw as draw_table
from fedwild.pictures.shown_run import ShownRun
from fedwild.watching import Tell, nobody

if TYPE_CHECKING:
    from fedwild.api import Run

NAME_LIST = 60  # the most characters


@dataclass(frozen=True)
class Confusion:
    """How often each true class got which answer."""

    shown: ShownRun
    counts: NDArray[np.int64]
    """(K + 1, K + 1): rows are true classes, columns answers; the last ones are "unknown"."""

    @property
    def names(self) -> list[str]:
        """Of rows and columns."""
        return [*self.shown.known, UNKNOWN_NAME]

    @property
    def shares(self) -> NDArray[np.float64]:
        """Of its row, what is in each cell; 0 in a row without samples."""
        shares: NDArray[np.float64] = self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        return shares

    def described(self) -> dict[str, Any]:
        """For programs: plain values."""
        return {**self.shown.described(), "names": self.names, "counts": self.counts.tolist()}


def figures(run: Run, client: str | None = None, workers: int | None = None) -> dict[str, Any]:
    """The confusion matrix on the run's test data as plain values.

    `counts` has a row for each true class and a column for each answer, called `names`: the known classes in the
    order of the model's outputs, then all others as "unknown". For methods with a model per client, `client` says
    whose; it is asked about its own test data.
    """
    return confusion_figures(run, client, workers).described()


def confusion_figures(
    run: Run, client: str | None = None, workers: int | None = None, tell: Tell = nobody
) -> Confusion:
    """The confusion matrix of a finished run, or of an unfinished one's last checkpoint."""
    tell("loading the data", 0, None)
    outcome = run.outcome(client, workers=workers, tell=tell)
    shown = ShownRun.of(run, client)
    return Confusion(shown, confusion_matrix(outcome.decision.numpy(), outcome.truth.numpy(), len(shown.known)))


def write(confusion: Confusion, path: Path) -> None:
    """Draw the matrix into a PNG file."""
    write_png(draw(confusion), path)


def draw(confusion: Confusion) -> Image.Image:
    """Cells with the share of the row in per cent, the darker the larger; at the side, the row's samples."""
    return draw_table(table_of(confusion))


def table_of(confusion: Confusion) -> HeatMap:
    """The matrix as it is drawn."""
    shares = confusion.shares
    blank = HeatMap(
        title=title_of(confusion),
        rows=confusion.names,
        columns=confusion.names,
        shades=shares,
        texts=[[""] * len(shares)] * len(shares),
        totals=[str(total) for total in confusion.counts.sum(axis=1).tolist()],
        apart=True,
    )
    # All in one format, so that no cell is empty only because its number is long.
    for digits in (1, 0):
        if blank.has_room(f"{100:.{digits}f}"):
            texts = [[f"{100 * share:.{digits}f}" if share else "" for share in row] for row in shares.tolist()]
            return replace(blank, texts=texts)
    return blank


def title_of(confusion: Confusion) -> list[str]:
    """What this is, and how it is read."""
    how = "rows are true classes, columns answers; per cent of the row"
    lines = [confusion.shown.title(int(confusion.counts.sum())), how]
    if confusion.shown.unknown:
        lines.append(f"{UNKNOWN_NAME}: {cut(', '.join(confusion.shown.unknown), NAME_LIST)}")
    return lines
