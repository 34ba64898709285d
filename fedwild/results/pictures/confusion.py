"""The confusion matrix of a run's model, with "unknown" as one more class: as plain values and as a figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedwild.core.names import UNKNOWN_NAME
from fedwild.core.text import cut
from fedwild.evaluation.progress import OnProgress, ignore_progress
from fedwild.lifecycle.run import Run
from fedwild.openset.metrics import confusion_matrix
from fedwild.results.pictures.heat_map import HeatMap, heat_map_figure
from fedwild.results.pictures.shown_run import ShownRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_NAME_LIST = 60  # characters


@dataclass(frozen=True)
class Confusion:
    """How often samples of each true class got which answer."""

    shown: ShownRun
    counts: NDArray[np.int64]
    """(K + 1, K + 1): rows are true classes, columns answers; the last row and column are "unknown"."""

    @property
    def names(self) -> list[str]:
        """The names of rows and columns."""
        return [*self.shown.known, UNKNOWN_NAME]

    def described(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**self.shown.described(), "names": self.names, "counts": self.counts.tolist()}


def figures(run: Run, client: str | None = None, workers: int | None = None) -> dict[str, Any]:
    """Return the confusion matrix on the run's test data as plain values.

    `counts` has a row for each true class and a column for each answer. `names` has their names: the known classes in
    the order of the model's outputs, then "unknown" for all other classes. For methods with a model per client,
    `client` selects the model; it answers on the client's own test data.
    """
    return confusion_figures(run, client, workers).described()


def confusion_figures(
    run: Run, client: str | None = None, workers: int | None = None, on_progress: OnProgress = ignore_progress
) -> Confusion:
    """Return the confusion matrix of a finished run, or of the last checkpoint of an unfinished one."""
    on_progress("loading the data", 0, None)
    outcome = run.outcome(client, workers=workers, on_progress=on_progress)
    shown = ShownRun.of(run, client)
    return Confusion(shown, confusion_matrix(outcome.decision.numpy(), outcome.truth.numpy(), len(shown.known)))


def draw(confusion: Confusion) -> Figure:
    """Draw each cell with its percentage of the row, and the number of samples to the right of the row."""
    text = "Percentage of each row; to the right, the number of samples."
    if confusion.shown.unknown:
        text += f"\n{UNKNOWN_NAME}: {cut(', '.join(confusion.shown.unknown), MAX_NAME_LIST)}"
    return heat_map_figure(table_of(confusion), confusion.shown.title(int(confusion.counts.sum())), text)


def table_of(confusion: Confusion) -> HeatMap:
    """Return each cell's share of its row as a heat map; 0 in a row without samples."""
    totals = confusion.counts.sum(axis=1)
    shares = confusion.counts / np.maximum(totals, 1)[:, None]
    decimals = 1 if len(shares) <= 15 else 0
    return HeatMap(
        values=shares,
        rows=confusion.names,
        columns=confusion.names,
        row_title="true class",
        column_title="answer",
        texts=[[f"{100 * share:.{decimals}f}" if share else "" for share in row] for row in shares.tolist()],
        totals=[str(total) for total in totals.tolist()],
        top=1.0,
        last_apart=True,
    )
