"""What must be said under a table so that nobody reads more into it than there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedwild.results.comparison.grouping import Group, differing
from fedwild.results.comparison.reading import FinishedRun
from fedwild.results.comparison.significance import MIN_SAMPLES, LEVEL, Verdict

TRAINING_ONLY = {f"data.{key}" for key in ("validation", "unlabelled_known", "augment", "mean", "std", "train_samples")}
"""Settings of the data that leave the test data as they are."""
MOST = 5


def verdict_notes(sign: str, tested: Iterable[tuple[str, Verdict | None]]) -> list[str]:
    """What the sign means, by which tests; and which rows could not be tested. `tested` are rows' names and tests."""
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


def left_out_note(unfinished: Sequence[Path]) -> str | None:
    """Which runs are missing."""
    return f"Unfinished and left out: {some(map(str, unfinished))}." if unfinished else None


def repeated_note(repeated: Sequence[FinishedRun]) -> str | None:
    """Which runs are there twice."""
    if not repeated:
        return None
    return f"Left out, since another run has the same settings and seed: {some(str(run.path) for run in repeated)}."


def other_settings_note(rows: Sequence[Group]) -> str | None:
    """Differences that the rows' names do not tell."""
    told = {key for row in rows for key in row.told}
    silent = [key for key in differing(row.runs for row in rows) if key not in told]
    return f"The rows also differ in {some(silent)}." if silent else None


def data_note(rows: Sequence[Group]) -> str | None:
    """Whether the rows are measured on the same test data."""
    settings = [key for key in differing(row.runs for row in rows) if key.startswith("data.")]
    measured = [key for key in settings if key not in TRAINING_ONLY]
    if measured:
        return f"The rows are not measured on the same test data: {some(measured)} differs."
    if not settings and any(_other_data(rows[0], row) for row in rows[1:]):
        return "The rows are not measured on the same data: their fingerprints in run.json differ."
    return None


def _other_data(one: Group, other: Group) -> bool:
    """By fingerprints; of shared seeds, since some data depend on the seed."""
    shared = [seed for seed in one.runs if seed in other.runs]
    if shared:
        return any(one.runs[seed].data != other.runs[seed].data for seed in shared)
    return {run.data for run in one.runs.values()}.isdisjoint(run.data for run in other.runs.values())


def some(names: Iterable[str]) -> str:
    """A few of the names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - MOST} more" if len(every) > MOST else ""
    return ", ".join(every[:MOST]) + more
