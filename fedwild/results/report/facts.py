"""All that a report tells of a run, collected once; whatever cannot be had is replaced by the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedwild.core.toml import read_toml
from fedwild.data import SITES, Split
from fedwild.data.sources import DATASETS, find_prepared
from fedwild.core.errors import UserError
from fedwild.results.report.guard import reason_of
from fedwild.results.report.history import History
from fedwild.results.report.seen import MAX_SAMPLES, Seen, extremes, seen_of
from fedwild.engines.workers import worker_count

if TYPE_CHECKING:
    from fedwild.api import Run
    from fedwild.runs.experiment import Experiment

MAX_SECONDS, MIN_SAMPLES = 4.0, 500
"""An evaluation that took longer is done again for a part of the samples, but not for fewer than these."""
QUICK = 1.0
"""Seconds that are not worth the start of worker processes."""
AT_SITES = "The samples are at the run's sites, which do not give them away, so nothing is drawn from them here."


@dataclass(frozen=True)
class Facts:
    """A run, read once."""

    run: Run
    about: dict[str, Any]
    """run.json."""
    table: dict[str, Any]
    """config.toml, as it is."""
    result: dict[str, Any] | None
    """The final figures; None while the run is unfinished."""
    history: History
    split: Split | None
    views: Sequence[Seen]
    """The answers of the common model, or of the worst and of the best client's own."""
    no_views: str
    """Why there are none."""
    no_data: str
    """Why the samples cannot be looked at."""

    @property
    def method(self) -> str:
        return str(self.table.get("method", {}).get("name", "?"))

    @property
    def metrics(self) -> dict[str, float | None]:
        """The final figures, or those of the last round that was evaluated."""
        if self.result is not None:
            return dict(self.result["metrics"])
        return self.history.measured[-1].metrics if self.history.measured else {}

    @property
    def by(self) -> dict[str, dict[str, float | None]]:
        """The same by client or domain."""
        if self.result is not None:
            return dict(self.result.get("by") or {})
        return self.history.measured[-1].by if self.history.measured else {}

    @property
    def at_sites(self) -> bool:
        return self.table.get("data", {}).get("name") == SITES

    @property
    def experiment(self) -> Experiment:
        """The run's data and split; a `UserError` says why they cannot be had."""
        if self.no_data:
            raise UserError(self.no_data)
        return self.run.experiment

    def views_or_reason(self) -> Sequence[Seen]:
        """The answers; a `UserError` says why there are none."""
        if not self.views:
            raise UserError(self.no_views)
        return self.views


def facts_of(run: Run, workers: int | None) -> Facts:
    """Read a run and ask its model about the test data."""
    first_index = run.folder.facts().get("first_index", 0)
    result, history = run.folder.result(), History(run.events(), first_index)
    table = read_toml(run.path / "config.toml")
    no_data = AT_SITES if table.get("data", {}).get("name") == SITES else why_no_data(run)
    views: list[Seen] = []

    def look() -> None:
        measured = history.measured[-1].by if history.measured else {}
        by = measured if result is None else result.get("by") or {}
        views.extend(views_of(run, effort_of(run, history, workers), by))

    no_views = no_data or reason_of(look)
    splits: list[Split] = []
    reason_of(lambda: splits.append(run.folder.split()))
    return Facts(
        run=run,
        about=run.folder.facts(),
        table=table,
        result=result,
        history=history,
        split=splits[0] if splits else None,
        views=views,
        no_views=no_views,
        no_data=no_data,
    )


def is_to_be_fetched(name: str) -> bool:
    """Whether reading a data set would download it first."""
    return name in DATASETS and name != "digits" and find_prepared(name) is None


def why_no_data(run: Run) -> str:
    """An empty text if the run's data are there as they were."""
    away = [name for name in run.config.data.names if not run.config.data.at_sites and is_to_be_fetched(name)]
    if away:
        # A page is no reason to download anything.
        return f"The run's data cannot be read: {', '.join(away)} is not on this machine any more."
    reason = reason_of(lambda: run.experiment)
    return reason and f"The run's data cannot be read: {reason}"


@dataclass(frozen=True)
class Effort:
    """How much of the evaluation is done again for the report."""

    samples: int
    workers: int


def effort_of(run: Run, history: History, workers: int | None) -> Effort:
    """As many samples as the log says take a few seconds; in this process if it is quickly done."""
    total = max(1, len(run.experiment.split.test))
    seconds = max((row.evaluation_seconds for row in history.measured[-3:]), default=0.0)
    part = min(1.0, MAX_SECONDS / max(seconds, 1e-9))
    samples = min(MAX_SAMPLES, max(MIN_SAMPLES, int(total * part)))
    quick = seconds * worker_count(None) * min(1.0, samples / total) < QUICK
    return Effort(samples, workers if workers is not None else 0 if quick else worker_count(None))


def views_of(run: Run, effort: Effort, by: dict[str, dict[str, float | None]]) -> list[Seen]:
    """The common model's answers, or those of two clients' own models."""
    method, server = run.settings.make_method(), run.server()
    if not method.is_personal(server):
        return [seen_of(run, None, "", effort.workers, effort.samples)]
    tested = {client.name for client in run.experiment.split.clients if len(client.test)}
    owners = [name for name in method.owners(server) if name in tested]
    if not owners:
        raise UserError("no client with a model of its own has test samples.")
    return [seen_of(run, name, about, effort.workers, effort.samples) for name, about in extremes(by, owners)]
