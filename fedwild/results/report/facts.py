"""Everything that a report shows about a run, read once. What is not available is replaced by the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedwild.contract import Exhibit
from fedwild.core.errors import UserError
from fedwild.core.toml import read_toml
from fedwild.data import SITES, Split
from fedwild.data.sources import DATASETS, why_missing
from fedwild.engines.choice import worker_count
from fedwild.lifecycle.run import Run
from fedwild.results.report.answers import MAX_SAMPLES, ModelAnswers, ask_model, worst_and_best
from fedwild.results.report.figure import result_or_reason
from fedwild.results.report.history import History
from fedwild.runs.experiment import Experiment

MAX_SECONDS, MIN_SAMPLES = 4.0, 500
"""If an evaluation took longer, it is repeated on a part of the samples only, but at least on this many."""
QUICK = 1.0
"""An evaluation of fewer seconds runs in this process, since starting workers takes longer."""
AT_SITES = "The samples stay at the run's sites, so they are not shown."


@dataclass(frozen=True)
class Facts:
    """A run, read once."""

    run: Run
    about: dict[str, Any]
    """The content of run.json."""
    table: dict[str, Any]
    """The content of config.toml."""
    result: dict[str, Any] | None
    """The final metrics; None while the run is unfinished."""
    history: History
    split: Split | None
    views: Sequence[ModelAnswers] = ()
    """The answers of the common model, or of the worst and the best client's models."""
    no_views: str = ""
    """Why `views` is empty."""
    no_data: str = ""
    """Why the samples are not available."""
    exhibits: Sequence[Exhibit] = ()
    """What the method wants shown."""
    no_exhibits: str = ""
    """Why the method failed to return exhibits."""

    @property
    def method(self) -> str:
        return str(self.table.get("method", {}).get("name", "?"))

    @property
    def metrics(self) -> dict[str, float | None]:
        """The final metrics, or those of the last evaluated round."""
        if self.result is not None:
            return dict(self.result["metrics"])
        return self.history.evaluated[-1].metrics if self.history.evaluated else {}

    @property
    def by(self) -> dict[str, dict[str, float | None]]:
        """The same by client or domain."""
        if self.result is not None:
            return dict(self.result.get("by") or {})
        return self.history.evaluated[-1].by if self.history.evaluated else {}

    @property
    def privacy(self) -> dict[str, Any]:
        """The guarantee of differential privacy after the last round; empty without privacy."""
        if self.result is not None:
            return dict(self.result.get("privacy") or {})
        return next((dict(e["privacy"]) for e in reversed(self.history.of("round")) if e.get("privacy")), {})

    @property
    def at_sites(self) -> bool:
        return self.table.get("data", {}).get("name") == SITES

    @property
    def experiment(self) -> Experiment:
        """The run's data and split. Raises `UserError` with the reason if they are not available."""
        if self.no_data:
            raise UserError(self.no_data)
        return self.run.experiment


def read_facts(run: Run, workers: int | None) -> Facts:
    """Read a run and evaluate its model on the test data."""
    about = run.folder.facts()
    split, _ = result_or_reason(run.folder.split)
    facts = Facts(
        run=run,
        about=about,
        table=read_toml(run.path / "config.toml"),
        result=run.folder.result(),
        history=History(run.events(), about.get("first_index", 0)),
        split=split,
    )
    facts = replace(facts, no_data=AT_SITES if facts.at_sites else why_no_data(run))
    exhibits, no_exhibits = result_or_reason(lambda: exhibits_of(facts))
    shown = replace(facts, exhibits=exhibits or (), no_exhibits=no_exhibits, no_views=facts.no_data)
    if not facts.no_data:
        views, no_views = result_or_reason(lambda: views_of(facts, workers))
        shown = replace(shown, views=views or (), no_views=no_views)
    return shown


def why_no_data(run: Run) -> str:
    """Return why the run's data is not available; an empty text if it is."""
    # Writing a report must not download anything.
    missing = [name for name in run.config.data.names if name in DATASETS and why_missing(name) is not None]
    if missing:
        return f"The run's data cannot be read: {', '.join(missing)} is no longer on this machine."
    _, failure = result_or_reason(lambda: run.experiment)
    return failure and f"The run's data cannot be read: {failure}"


def effort_for(run: Run, history: History, workers: int | None) -> tuple[int, int]:
    """Return workers and samples: as many as take MAX_SECONDS according to the log, and no workers if that is quick."""
    total = max(1, len(run.experiment.split.test))
    seconds = max((row.evaluation_seconds for row in history.evaluated[-3:]), default=0.0)
    part = min(1.0, MAX_SECONDS / max(seconds, 1e-9))
    samples = min(MAX_SAMPLES, max(MIN_SAMPLES, int(total * part)))
    is_quick = seconds * worker_count(None) * min(1.0, samples / total) < QUICK
    return workers if workers is not None else 0 if is_quick else worker_count(None), samples


def views_of(facts: Facts, workers: int | None) -> list[ModelAnswers]:
    """Return the answers of the common model, or of two clients' models."""
    run, effort = facts.run, effort_for(facts.run, facts.history, workers)
    answering = run.settings.make_method().answers(run.server())
    if not answering.personal:
        return [ask_model(run, None, "", *effort)]
    tested = {client.name for client in run.experiment.split.clients if len(client.test)}
    clients = [name for name in answering.clients if name in tested]
    if not clients:
        raise UserError("no client that has a model has test samples.")
    shown = worst_and_best(facts.by, clients)
    return [ask_model(run, name, about, *effort) for name, about in shown]


def exhibits_of(facts: Facts) -> Sequence[Exhibit]:
    """Return what the method wants shown; nothing if the run has no model yet or its settings cannot be read."""
    try:
        method, record = facts.run.settings.make_method(), facts.run.record()
    except UserError:
        # The sections about the model give the reason.
        return ()
    return method.exhibits(replace(record, client=None) if facts.no_data else record)
