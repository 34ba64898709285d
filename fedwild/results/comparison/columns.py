"""The figures of a comparison: which there are, what is better, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedwild.results.comparison.reading import COSTS, FinishedRun
from fedwild.results.comparison.significance import deviation, mean
from fedwild.display.run_display import LENGTHS, SHOWN, SHOWN_IF_THERE, shown, size
from fedwild.core.errors import unknown_name

LABELS = {
    **SHOWN,
    **SHOWN_IF_THERE,
    "seconds": "time",
    "bytes_up": "bytes up",
    "bytes_down": "bytes down",
}
BETTER_SMALL = ("fpr95_", "forgetting", *COSTS)
COUNTS = ("number_", "rounds", "clients")
NEITHER = (*COUNTS, *LENGTHS, "openness", "boundary", "largest_", "moved_")


@dataclass(frozen=True)
class Column:
    """One figure."""

    key: str

    @property
    def label(self) -> str:
        return LABELS.get(self.key, self.key)

    @property
    def _plain_key(self) -> str:
        """The figure, whether of all or of one client or domain."""
        return self.key.rsplit(".", 1)[-1] if self.key.startswith("by.") else self.key

    @property
    def better(self) -> str | None:
        """'large', 'small', or None where neither is better."""
        if self._plain_key.startswith(NEITHER):
            return None
        return "small" if self._plain_key.startswith(BETTER_SMALL) else "large"

    @property
    def is_cost(self) -> bool:
        """Time and bytes, which say nothing of the model."""
        return self.key in COSTS

    def text(self, values: Sequence[float], runs: int) -> str:
        """Mean and deviation as people read them; how many runs are meant if the figure is not defined in all."""
        if not values:
            return "-"
        some = "" if len(values) == runs else f" ({len(values)} of {runs})"
        return self._spread(mean(values), deviation(values)) + some

    def shown_mean(self, values: Sequence[float]) -> str:
        """The mean alone: rows that show the same are equally good."""
        return self._spread(mean(values), None)

    def _spread(self, center: float, spread: float | None) -> str:
        if self.key.startswith("bytes_"):
            return size(center)
        if spread is None and self._plain_key.startswith(COUNTS):
            return f"{center:g}"
        scale, unit = self._scale()
        about = "" if spread is None else f" ± {scale * spread:.1f}"
        return f"{scale * center:.1f}{about}{unit}"

    def _scale(self) -> tuple[int, str]:
        if self.key == "seconds":
            return 1, " s"
        return (1, "") if self._plain_key.startswith((*COUNTS, *LENGTHS)) else (100, " %")


def columns_for(runs: Sequence[FinishedRun], metrics: Iterable[str] = ()) -> list[Column]:
    """The figures that were asked for, or those that the console shows."""
    there = {key for run in runs for key in run.figures}
    asked = list(dict.fromkeys(metrics))
    for key in asked:
        if key not in there:
            raise unknown_name("--metric", key, [name for name in there if not name.startswith("by.")])
    usual = [*shown(dict.fromkeys(there)), *COSTS]
    return [Column(key) for key in asked or usual if key in there]
