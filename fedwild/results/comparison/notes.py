"""Notes below a table: what its marks mean, which runs it does not include, and where its rows are not comparable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedwild.results.comparison.grouping import Group, differing
from fedwild.results.comparison.reading import FinishedRun
from fedwild.results.comparison.significance import LEVEL, MIN_SAMPLES, TTest

TRAINING_ONLY = {f"data.{key}" for key in ("validation", "unlabelled_known", "augment", "mean", "std", "train_samples")}
"""Settings of the data that do not change the test data."""
MAX_NAMES = 5


def significance_notes(sign: str, tested: Iterable[tuple[str, TTest | None]]) -> list[str]:
    """Return what the sign means, by which tests, and which rows could not be tested; `tested` has rows and tests."""
    done = [(name, test) for name, test in tested if test is not None]
    kinds = list(dict.fromkeys(test.kind for _, test in done if test.p is not None))
    few = list(dict.fromkeys(name for name, test in done if test.p is None))
    notes = []
    if kinds:
        marked = any(test.is_tie for _, test in done)
        what = f"{sign} not significantly" if marked else "All rows that could be tested are significantly"
        how = f"{' or '.join(kinds)} over seeds, two-sided, p {'≥' if marked else '<'} {LEVEL} after Holm's correction"
        notes.append(f"{what} worse than the best of the column ({how}).")
    if few:
        whom = "" if not kinds else f" for {some(few)}"
        notes.append(f"Too few seeds to test differences{whom}: both rows need at least {MIN_SAMPLES}.")
    return notes


def unfinished_note(unfinished: Sequence[Path]) -> str | None:
    """Return which runs are missing because they are unfinished."""
    return f"Not included, because they are unfinished: {some(map(str, unfinished))}." if unfinished else None


def repeated_note(repeated: Sequence[FinishedRun]) -> str | None:
    """Return which runs repeat another one."""
    if not repeated:
        return None
    paths = some(str(run.path) for run in repeated)
    return f"Not included, because another run has the same settings and seed: {paths}."


def other_settings_note(rows: Sequence[Group]) -> str | None:
    """Return the differences that the row names do not show."""
    named = {key for row in rows for key in row.named_by}
    hidden = [key for key in differing(row.runs for row in rows) if key not in named]
    return f"The rows also differ in {some(hidden)}." if hidden else None


def data_note(rows: Sequence[Group]) -> str | None:
    """Return a warning if the rows are measured on different test data."""
    settings = [key for key in differing(row.runs for row in rows) if key.startswith("data.")]
    measured = [key for key in settings if key not in TRAINING_ONLY]
    if measured:
        return f"The rows are not measured on the same test data: {some(measured)} differs."
    if not settings and any(_has_other_data(rows[0], row) for row in rows[1:]):
        return "The rows are not measured on the same data: their fingerprints in run.json differ."
    return None


def _has_other_data(one: Group, other: Group) -> bool:
    """Return whether fingerprints differ, by shared seeds where there are any: some data depends on the seed."""
    shared = [seed for seed in one.runs if seed in other.runs]
    if shared:
        return any(one.runs[seed].data != other.runs[seed].data for seed in shared)
    return {run.data for run in one.runs.values()}.isdisjoint(run.data for run in other.runs.values())


def some(names: Iterable[str]) -> str:
    """Return the first few names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - MAX_NAMES} more" if len(every) > MAX_NAMES else ""
    return ", ".join(every[:MAX_NAMES]) + more
