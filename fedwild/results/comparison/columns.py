"""The columns of a comparison: which figures there are, which values are better, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedwild.core.errors import unknown_name
from fedwild.core.text import size
from fedwild.display.figures import IF_MEASURED, OPEN_SET, is_count, is_share, shown_figures
from fedwild.results.comparison.reading import COSTS, FinishedRun
from fedwild.results.comparison.significance import deviation, mean

LABELS = {**OPEN_SET, **IF_MEASURED, "seconds": "time", "bytes_up": "bytes up", "bytes_down": "bytes down"}
BETTER_SMALL = ("fpr95_", "forgetting", *COSTS)


@dataclass(frozen=True)
class Column:
    """One figure."""

    key: str

    @property
    def label(self) -> str:
        return LABELS.get(self.key, self.key)

    @property
    def _figure(self) -> str:
        """The figure's name without the client or domain."""
        return self.key.rsplit(".", 1)[-1] if self.key.startswith("by.") else self.key

    @property
    def better(self) -> str | None:
        """'large', 'small', or None if the figure only describes a run."""
        if self._figure.startswith(BETTER_SMALL):
            return "small"
        return "large" if is_share(self._figure) and self._figure != "openness" else None

    @property
    def is_cost(self) -> bool:
        """Whether this is the time or the number of bytes, which say nothing about the model."""
        return self.key in COSTS

    def text(self, values: Sequence[float], runs: int) -> str:
        """Return the mean and the deviation, with the number of runs if the figure is not defined in all of them."""
        if not values:
            return "-"
        some = "" if len(values) == runs else f" ({len(values)} of {runs})"
        return self._format(mean(values), deviation(values)) + some

    def shown_mean(self, values: Sequence[float]) -> str:
        """Return the mean alone; rows that show the same mean are equally good."""
        return self._format(mean(values), None)

    def _format(self, center: float, spread: float | None) -> str:
        if self.key.startswith("bytes_"):
            return size(center)
        if spread is None and is_count(self._figure):
            return f"{center:g}"
        scale, decimals, unit = self._unit()
        about = "" if spread is None else f" ± {scale * spread:.{decimals}f}"
        return f"{scale * center:.{decimals}f}{about}{unit}"

    def _unit(self) -> tuple[int, int, str]:
        """Return the factor, the number of decimals and the unit."""
        if self.key == "seconds":
            return 1, 1, " s"
        if is_share(self._figure):
            return 100, 1, " %"
        return 1, 1 if is_count(self._figure) else 2, ""


def columns_for(runs: Sequence[FinishedRun], metrics: Iterable[str] = ()) -> list[Column]:
    """Return the requested columns, or those that the final table of a run has."""
    measured = {key for run in runs for key in run.figures}
    requested = list(dict.fromkeys(metrics))
    for key in requested:
        if key not in measured:
            raise unknown_name("--metric", key, [name for name in measured if not name.startswith("by.")])
    return [Column(key) for key in requested or (*shown_figures(measured), *COSTS) if key in measured]
